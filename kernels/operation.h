/* What an operation is to those who do not compute it: checks, plans, costs and parts, one description each.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A family of kernels describes its operations in its own folder, and operation.c lists them. Clients, executors, the wire
 * and the daemon go by the descriptions, and know no operation by name.
 */
#ifndef TANDEM_KERNELS_OPERATION_H
#define TANDEM_KERNELS_OPERATION_H

#include "kernels/target.h"

/* What an operation takes, in millions of floating-point operations: of its matrix products alone, and with all else in the
 * same unit. */
typedef struct td_cost {
    double mflop, work_mflop;
} td_cost;

/* Where the next part of an operation that is cut begins, in words of its own; {0} before the first. */
typedef struct td_part_at {
    uint32_t plane, row;
} td_part_at;

/* A number of an operation's struct: 32 bits, of no sign or a float. */
typedef struct td_field {
    const char *name;
    uint32_t offset;
    bool is_float;
} td_field;
enum { TD_MAX_FIELDS = 16 };

/* td_operation.precision_at of an operation without a precision. */
#define TD_NO_PRECISION UINT32_MAX

typedef struct td_operation {
    td_operation_layout layout;
    td_field fields[TD_MAX_FIELDS]; /* all of its struct but views and what is reserved; the rest have no name */
    uint32_t precision_at; /* of the tandem_precision in its struct */
    bool internal; /* the daemon's worker makes jobs of it; no client may */
    bool claims;   /* its plans always claim what they write: with td_target.commit or without */
    const char *labels[TANDEM_PRECISION_4B + 1]; /* of its jobs in profilers, by the plan's precision */

    /* Everything about it but its mems. ARG or UNSUPPORTED: `why` names the argument and its value. */
    tandem_status (*check)(const tandem_operands *op, char *why, size_t why_bytes);

    /* Its plan, once it has passed the check; offset_bytes of its views are addresses as far as their alignment matters.
     * UNSUPPORTED with the reason where there is no kernel. */
    tandem_status (*plan)(const tandem_operands *op, const td_target *target, td_plan *plan, char *why, size_t why_bytes);

    /* What a plan would have as its precision: what AUTO stands for there. NULL: it has none. */
    uint32_t (*precision)(const tandem_operands *op, const td_target *target);

    /* `position`, here and below: td_target's, where op is a part; 0: it is whole. */
    td_cost (*cost)(const tandem_operands *op, uint32_t position);

    /* How a daemon may cut it, so that the bits stay the same: into how many parts where about `count` are asked for (1: it
     * cannot be), then each of them in turn, whose position is returned. NULL: it is never cut. */
    uint32_t (*split)(const tandem_operands *op, uint32_t count);
    uint32_t (*part)(const tandem_operands *op, uint32_t count, td_part_at *at, tandem_operands *part);
} td_operation;

/* By its number; NULL if there is none. */
const td_operation *td_operation_find(uint32_t number);
/* The same for who may not name internal ones, as the wire's rules take it. */
const td_operation_layout *td_operation_of_clients(uint32_t number);
/* One of those by its name. */
const td_operation *td_operation_named(const char *name);
/* "1 (attention)" and so on: those that clients may name. */
void td_operation_names(char *text, size_t bytes);

static inline uint32_t td_operation_precision(const td_operation *operation, const tandem_operands *op)
{
    uint32_t precision = TANDEM_PRECISION_AUTO;

    if (operation->precision_at != TD_NO_PRECISION)
        memcpy(&precision, (const char *)op + operation->precision_at, sizeof precision);
    return precision;
}

static inline void td_operation_set_precision(const td_operation *operation, tandem_operands *op, uint32_t precision)
{
    if (operation->precision_at != TD_NO_PRECISION)
        memcpy((char *)op + operation->precision_at, &precision, sizeof precision);
}

#endif
