/* What is said of a network's layer, as it is on the wire: in the same order, but for its name, which the graph has.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_CLIENT_WIRE_LAYER_H
#define TANDEM_CLIENT_WIRE_LAYER_H

#include <string.h>

#include "interop/wire/wire.h"
#include "tandem/tandem.h"

enum { TD_LAYER_AT = offsetof(tandem_layer, node), TD_LAYER_BYTES = offsetof(tandem_layer, name) - offsetof(tandem_layer, node) };
_Static_assert(sizeof(td_wire_header) + TD_LAYER_BYTES == sizeof(td_wire_layer), "as long as on the wire, behind the header");
#define TD_LAYER_MEMBER(member)                                                                                                  \
    _Static_assert(offsetof(tandem_layer, member) - TD_LAYER_AT + sizeof(td_wire_header) == offsetof(td_wire_layer, member), #member)
TD_LAYER_MEMBER(precision);
TD_LAYER_MEMBER(samples);
TD_LAYER_MEMBER(changes);
TD_LAYER_MEMBER(pending);
TD_LAYER_MEMBER(heads);
TD_LAYER_MEMBER(worst_head);
TD_LAYER_MEMBER(worst_similarity);
TD_LAYER_MEMBER(cosine);
TD_LAYER_MEMBER(relative_l1);
TD_LAYER_MEMBER(similarity);
#undef TD_LAYER_MEMBER

static inline void td_wire_layer_put(td_wire_layer *to, const tandem_layer *from)
{
    memcpy((char *)to + sizeof to->header, (const char *)from + TD_LAYER_AT, TD_LAYER_BYTES);
}

static inline void td_wire_layer_get(tandem_layer *to, const td_wire_layer *from)
{
    memcpy((char *)to + TD_LAYER_AT, (const char *)from + sizeof from->header, TD_LAYER_BYTES);
}

#endif
