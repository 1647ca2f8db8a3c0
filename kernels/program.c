/* Programs: graphs as one plan. See program.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/program_maker.h"

#include <inttypes.h>
#include <stdlib.h>

#include "kernels/commit.h"
#include "kernels/join.h"

enum { WHY_BYTES = 400 };

/* --- Numbers --- */

static tandem_status check_numbers(const maker *m)
{
    for (uint32_t i = 0; i < m->graph->number_count; i++) {
        const td_number *number = &m->graph->numbers[i];
        if (m->numbers[i] < 1 || m->numbers[i] > number->most)
            return td_fail(m->why, m->why_bytes, TANDEM_ERROR_ARG,
                           "numbers.%s is %" PRIu32 "; it must be 1 to %" PRIu32, number->name,
                           m->numbers[i], number->most);
    }
    return TANDEM_OK;
}

/* An expression's value, `least` to `most`; where it is not, `where` is for the error. */
static tandem_status value_of(const maker *m, const char *text, int64_t least, int64_t most,
                              int64_t *value, const char *where)
{
    char why[WHY_BYTES];
    tandem_status status = td_expression_value(text, m->graph->numbers, m->numbers,
                                               m->graph->number_count, value, why, sizeof why);
    if (status != TANDEM_OK)
        return td_fail(m->why, m->why_bytes, status, "%s: %s", where, why);
    if (*value < least || *value > most)
        return td_fail(m->why, m->why_bytes, TANDEM_ERROR_ARG,
                       "%s: \"%s\" is %" PRId64 "; it must be %" PRId64 " to %" PRId64, where, text,
                       *value, least, most);
    return TANDEM_OK;
}

/* --- Tensors --- */

static uint64_t elements_of(const uint32_t shape[4])
{
    uint64_t elements = 1; /* UINT64_MAX where they are too many */
    for (int i = 0; i < 4; i++)
        if (!td_mul_u64(elements, shape[i], &elements))
            return UINT64_MAX;
    return elements;
}

tandem_view td_program_dense(uint32_t dtype, const uint32_t shape[4])
{
    tandem_view view = tandem_view_dense(0, 0, dtype, shape[1], shape[2], shape[3]);
    if (td_dtype_is_codes(dtype)) {
        const uint32_t rows = (uint32_t)td_align_up(shape[2], 128);
        const uint32_t channels = shape[3] > 128 ? 256 : (uint32_t)td_align_up(shape[3], 32);
        view = tandem_view_dense(0, 0, dtype, shape[1], rows, channels);
        view.stride_row = dtype == TANDEM_DTYPE_CODES_INT8 ? channels : rows;
    }
    return view;
}

/* A block's next bytes, which begin aligned. */
static bool append(uint64_t *block, uint64_t bytes, uint64_t *offset)
{
    uint64_t end;
    *offset = *block;
    if (!td_add_u64(*block, bytes, &end) || end > INT64_MAX - TD_PROGRAM_ALIGN)
        return false;
    *block = td_align_up(end, TD_PROGRAM_ALIGN);
    return true;
}

/* The block of a role that has one, and the view that it is. */
static uint64_t *block_of(maker *m, uint32_t role, uint32_t *view)
{
    switch (role) {
    case TD_ROLE_WEIGHT: *view = TD_PROGRAM_WEIGHTS; return &m->program->weight_bytes;
    case TD_ROLE_CACHE:
    case TD_ROLE_STATE: *view = TD_PROGRAM_STATE; return &m->program->state_bytes;
    case TD_ROLE_UNIFORM: *view = TD_PROGRAM_UNIFORM; return &m->program->uniform_bytes;
    default: return NULL;
    }
}

static tandem_status size_tensor(maker *m, uint32_t i)
{
    const td_graph_tensor *from = &m->graph->tensors[i];
    td_program_tensor *tensor = &m->tensors[i];
    char where[TD_GRAPH_NAME_BYTES + 40];

    *tensor = (td_program_tensor){
        .name = from->name,
        .role = from->role,
        .dtype = from->dtype,
        .dimensions = from->dimensions,
        .shape = {1, 1, 1, 1},
        .view = UINT32_MAX};
    for (uint32_t d = 0; d < from->dimensions; d++) {
        int64_t size;
        td_text(where, sizeof where, "tensors[\"%s\"].shape[%" PRIu32 "]", from->name, d);
        const tandem_status status =
            value_of(m, from->shape[d], 1, TD_MOST_DIMENSION, &size, where);
        if (status != TANDEM_OK)
            return status;
        tensor->shape[4 - from->dimensions + d] = (uint32_t)size;
    }
    const uint32_t *s = tensor->shape;
    const tandem_view view = td_program_dense(from->dtype, s);
    const td_dtype of = td_dtype_of(from->dtype);
    if (s[3] % of.elements)
        return td_fail(m->why, m->why_bytes, TANDEM_ERROR_ARG,
                       "tensors[\"%s\"]: has %" PRIu32
                       " channels; blocks of its dtype have %" PRIu32 " elements",
                       from->name, s[3], of.elements);
    tensor->bytes = elements_of(s) > INT64_MAX
                        ? UINT64_MAX
                        : td_view_extent_bytes(&view, s[0], s[1], s[2], s[3]);
    if (tensor->bytes > INT64_MAX)
        return td_fail(m->why, m->why_bytes, TANDEM_ERROR_ARG,
                       "tensors[\"%s\"]: has more than 2^63 bytes", from->name);
    return TANDEM_OK;
}

/* Bytes in the block of its role, if that has one. */
static tandem_status place_in_block(maker *m, uint32_t i)
{
    const td_graph_tensor *from = &m->graph->tensors[i];
    td_program_tensor *tensor = &m->tensors[i];
    uint64_t *block = block_of(m, from->role, &tensor->view);

    if (block && !append(block, tensor->bytes, &tensor->offset))
        return td_fail(m->why, m->why_bytes, TANDEM_ERROR_ARG,
                       "tensors[\"%s\"]: ends beyond 2^63 bytes of the block of its role, %s",
                       from->name, td_role_names[from->role]);
    return TANDEM_OK;
}

/* Bytes in the views and in scratch. */
static tandem_status place_tensor(maker *m, uint32_t i)
{
    const td_graph_tensor *from = &m->graph->tensors[i];
    td_program_tensor *tensor = &m->tensors[i];
    const bool ends = from->role == TD_ROLE_STATE || (from->role == TD_ROLE_OUTPUT && m->commit);
    const tandem_status status = place_in_block(m, i);

    if (status != TANDEM_OK)
        return status;
    if (from->role == TD_ROLE_INPUT || from->role == TD_ROLE_OUTPUT) {
        tensor->view = TD_PROGRAM_BINDINGS + m->program->binding_count;
        m->bindings[m->program->binding_count++] = i;
    }
    m->before[i] = m->behind[i] = (location){TD_BASE_VIEW, tensor->view, tensor->offset};
    if (from->role == TD_ROLE_TEMPORARY || (ends && from->writer != UINT32_MAX))
        m->behind[i] =
            (location){TD_BASE_SCRATCH, 0, td_build_take(&m->at, true, tensor->bytes).offset};
    return TANDEM_OK;
}

static tandem_status make_tensors(maker *m)
{
    tandem_status status = TANDEM_OK;
    for (uint32_t i = 0; i < m->graph->tensor_count && status == TANDEM_OK; i++)
        status = size_tensor(m, i);
    for (uint32_t i = 0; i < m->graph->tensor_count && status == TANDEM_OK; i++)
        status = place_tensor(m, i);
    for (uint32_t i = 0; i < m->graph->tensor_count && status == TANDEM_OK; i++) {
        const char *name = m->tensors[i].name; /* the graph's, which may end before the program */
        m->tensors[i].name = td_arena_text(&m->program->memory, name, strlen(name));
        status = m->tensors[i].name ? TANDEM_OK : td_program_no_memory(m);
    }
    return status;
}

/* On a GPU nodes read a copy of what a run brings: it lies in the host's memory. */
static void fetch_uniforms(maker *m)
{
    const uint64_t bytes = m->at.is_gpu ? m->program->uniform_bytes : 0;
    const td_place to = td_build_take(&m->at, bytes != 0, bytes);

    if (bytes)
        td_build_fetch(&m->at, TD_PROGRAM_UNIFORM, bytes, to);
    for (uint32_t i = 0; i < m->graph->tensor_count && bytes; i++)
        if (m->tensors[i].role == TD_ROLE_UNIFORM)
            m->before[i] = m->behind[i] = (location){TD_BASE_SCRATCH, 0, to.offset + m->tensors[i].offset};
}

tandem_status td_program_tensors(const td_graph *graph, const uint32_t *numbers, uint32_t roles,
                                 td_program_tensor *tensors, char *why, size_t why_bytes)
{
    td_program blocks = {0}; /* for their bytes so far */
    maker m = {.graph = graph,
               .numbers = numbers,
               .program = &blocks,
               .tensors = tensors,
               .why = why, .why_bytes = why_bytes};
    tandem_status status = numbers ? check_numbers(&m) : TANDEM_OK;

    memset(tensors, 0, graph->tensor_count * sizeof *tensors);
    for (uint32_t i = 0; i < graph->tensor_count && status == TANDEM_OK; i++) {
        if (!(roles >> graph->tensors[i].role & 1))
            continue;
        status = size_tensor(&m, i);
        if (status == TANDEM_OK)
            status = place_in_block(&m, i);
    }
    return status;
}

/* --- Nodes --- */

static tandem_status set_fields(const maker *m, uint32_t at, tandem_operands *op)
{
    const td_graph_node *node = &m->graph->nodes[at];
    for (uint32_t i = 0; i < node->value_count; i++) {
        const td_field *field = node->values[i].field;
        char where[64], *to = (char *)op + field->offset;
        int64_t value;
        td_text(where, sizeof where, "nodes[%" PRIu32 "].%s", at, field->name);
        if (field->is_float) {
            float number = 0;
            td_graph_decimal(node->values[i].text, &number);
            memcpy(to, &number, sizeof number);
            continue;
        }
        const tandem_status status = value_of(m, node->values[i].text, 0, UINT32_MAX, &value, where);
        if (status != TANDEM_OK)
            return status;
        memcpy(to, &(uint32_t){(uint32_t)value}, sizeof(uint32_t));
    }
    const uint8_t *planned = m->target.node_precisions;
    const uint32_t precision =
        planned && planned[at] != TANDEM_PRECISION_AUTO ? planned[at] : m->target.precision;
    if (precision != TANDEM_PRECISION_AUTO)
        td_operation_set_precision(node->operation, op, precision);
    return TANDEM_OK;
}

/* A view that is being set: what it is called, of which shape the operation wants it, of which
 * tensor it is. */
typedef struct viewing {
    char where[100];
    uint32_t shape[4];
    const td_graph_view *from;
    const td_program_tensor *tensor;
    tandem_view *view;
} viewing;

#define SHAPE "%" PRIu32 " x %" PRIu32 " x %" PRIu32 " x %" PRIu32
#define SHAPED(shape) (shape)[0], (shape)[1], (shape)[2], (shape)[3]

static tandem_status set_strides(const maker *m, const viewing *v)
{
    static const char *const axes[3] = {"batch", "head", "row"};
    int64_t *const strides[3] = {&v->view->stride_batch, &v->view->stride_head, &v->view->stride_row};
    for (int i = 0; i < 3 && v->from->strides[0]; i++) {
        char where[130];
        td_text(where, sizeof where, "%s.strides.%s", v->where, axes[i]);
        const tandem_status status = value_of(m, v->from->strides[i], 0, INT64_MAX, strides[i], where);
        if (status != TANDEM_OK)
            return status;
    }
    return TANDEM_OK;
}

static tandem_status set_offset(const maker *m, const viewing *v)
{
    const td_dtype of = td_dtype_of(v->tensor->dtype);
    int64_t offset;
    char where[130];
    if (!v->from->offset)
        return TANDEM_OK;
    td_text(where, sizeof where, "%s.offset", v->where);
    const tandem_status status = value_of(m, v->from->offset, 0, INT64_MAX / 256, &offset, where);
    if (status != TANDEM_OK)
        return status;
    if (offset % of.elements)
        return td_fail(m->why, m->why_bytes, TANDEM_ERROR_ARG,
                       "%s is %" PRId64 "; it must be a multiple of %" PRIu32
                       ", the elements of a block",
                       where, offset, of.elements);
    v->view->offset_bytes = (uint64_t)offset / of.elements * of.bytes;
    return TANDEM_OK;
}

/* A view without strides is of whole rows of its tensor, unless it has one number a row; without an
 * offset, too, it is of all of them. */
static tandem_status check_dense(const maker *m, const viewing *v)
{
    const td_program_tensor *t = v->tensor;
    const bool whole = !v->from->offset && !v->from->strides[0];
    const bool rows = v->shape[3] == t->shape[3] || v->shape[3] == 1;
    if (td_dtype_is_codes(t->dtype) && (!whole || memcmp(v->shape, t->shape, sizeof t->shape) != 0))
        return td_fail(m->why, m->why_bytes, TANDEM_ERROR_ARG,
                       "%s: is " SHAPE ", \"%s\" is " SHAPE ": a view of codes is all of its tensor", v->where, SHAPED(v->shape), t->name, SHAPED(t->shape));
    if (v->from->strides[0] ||
        (rows && (!whole || elements_of(v->shape) == elements_of(t->shape))))
        return TANDEM_OK;
    return td_fail(
        m->why, m->why_bytes, TANDEM_ERROR_ARG,
        "%s: is " SHAPE ", \"%s\" is " SHAPE ": without strides both have as many channels%s",
        v->where, SHAPED(v->shape), t->name, SHAPED(t->shape), whole ? ", and as many rows" : "");
}

/* What is written is all of a tensor, where it is no cache: as many elements, which the operation's
 * check finds to be different ones. */
static tandem_status check_extent(const maker *m, const viewing *v, td_writes writes)
{
    const td_program_tensor *t = v->tensor;
    uint64_t end;
    if (!td_view_end_bytes(v->view, v->shape, &end) || end > t->bytes)
        return td_fail(m->why, m->why_bytes, TANDEM_ERROR_ARG,
                       "%s: " SHAPE " leaves \"%s\", which has %" PRIu64 " bytes", v->where,
                       SHAPED(v->shape), t->name, t->bytes);
    if (writes == TD_WRITES_ALL && elements_of(v->shape) != elements_of(t->shape))
        return td_fail(m->why, m->why_bytes, TANDEM_ERROR_ARG,
                       "%s: writes " SHAPE " of \"%s\", which is " SHAPE "; it must write all of it", v->where, SHAPED(v->shape), t->name, SHAPED(t->shape));
    return TANDEM_OK;
}

static tandem_status set_view(const maker *m, uint32_t at, const td_graph_view *from,
                              tandem_operands *op)
{
    const td_operation_layout *layout = &m->graph->nodes[at].operation->layout;
    const td_view_layout *as = &layout->views[from->view];
    viewing v = {.from = from,
                 .tensor = &m->tensors[from->tensor],
                 .view = td_view_of(layout, op, from->view)};

    td_text(v.where, sizeof v.where, "nodes[%" PRIu32 "].views.%s", at, as->name);
    layout->shape(op, from->view, v.shape);
    *v.view = td_program_dense(v.tensor->dtype, v.shape);
    tandem_status status = set_strides(m, &v);
    if (status == TANDEM_OK)
        status = set_offset(m, &v);
    if (status == TANDEM_OK)
        status = check_dense(m, &v);
    return status == TANDEM_OK ? check_extent(m, &v, as->written) : status;
}

static node_places find_places(const maker *m, uint32_t at, const tandem_operands *op)
{
    const td_graph_node *node = &m->graph->nodes[at];
    const td_operation_layout *layout = &node->operation->layout;
    node_places places = {0};

    for (uint32_t i = 0; i < node->view_count; i++) {
        const td_graph_view *from = &node->views[i];
        const bool behind =
            layout->views[from->view].written || m->graph->tensors[from->tensor].writer < at;
        location to = behind ? m->behind[from->tensor] : m->before[from->tensor];
        to.offset += td_view_in(layout, op, from->view)->offset_bytes;
        places.views[from->view] = to;
    }
    return places;
}

static uint64_t bytes_of(const td_operation_layout *layout, const tandem_operands *op)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < layout->view_count; i++) {
        uint32_t shape[4];
        if (!td_view_is_there(layout, op, i))
            continue;
        layout->shape(op, i, shape);
        bytes += td_view_extent_bytes(td_view_in(layout, op, i), shape[0], shape[1], shape[2], shape[3]);
    }
    return bytes;
}

/* A node's own plan, in m->part. */
static tandem_status plan_node(maker *m, uint32_t at, tandem_operands *op)
{
    const td_graph_node *node = &m->graph->nodes[at];
    char why[WHY_BYTES] = "";
    tandem_status status = set_fields(m, at, op);
    /* A view's shape may depend on which others are there, whichever comes first. */
    for (uint32_t i = 0; i < node->view_count; i++)
        td_view_of(&node->operation->layout, op, node->views[i].view)->dtype =
            m->tensors[node->views[i].tensor].dtype;
    m->target.constant_views = 0;
    for (uint32_t i = 0; i < node->view_count && status == TANDEM_OK; i++) {
        const bool constant = m->tensors[node->views[i].tensor].role == TD_ROLE_WEIGHT;
        m->target.constant_views |= (uint32_t)constant << node->views[i].view;
        status = set_view(m, at, &node->views[i], op);
    }
    if (status != TANDEM_OK)
        return status;
    status = node->operation->check(op, why, sizeof why);
    if (status == TANDEM_OK)
        status = node->operation->plan(op, &m->target, &m->part, why, sizeof why);
    return status == TANDEM_OK
               ? status
               : td_fail(m->why, m->why_bytes, status, "nodes[%" PRIu32 "]: %s", at, why);
}

static tandem_status make_node(maker *m, uint32_t at)
{
    const td_operation *operation = m->graph->nodes[at].operation;
    tandem_operands op;

    memset(&op, 0, sizeof op);
    const tandem_status status = plan_node(m, at, &op);
    if (status != TANDEM_OK)
        return status;
    m->nodes[at] = (td_program_node){.operation = operation->layout.name,
                                     .precision = operation->precision_at == TD_NO_PRECISION
                                                      ? TANDEM_PRECISION_AUTO
                                                      : m->part.precision,
                                     .first_record = m->plan->record_count,
                                     .record_count = m->part.record_count,
                                     .mflop = operation->cost(&op, 0).mflop,
                                     .bytes = bytes_of(&operation->layout, &op)};
    const node_places places = find_places(m, at, &op);
    const tandem_status added = td_program_append(m, at, &places);
    if (added != TANDEM_OK)
        return added;
    if (at && m->nodes[at - 1].record_count == 1 && m->nodes[at].record_count == 1 &&
        td_join_last(&m->at, &m->target, td_graph_feeds_next(m->graph, at - 1))) {
        m->nodes[at - 1].record_count = 0;
        m->nodes[at].first_record--;
    }
    return m->target.sample_rows ? td_program_add_sample(m, at, &op, &places) : TANDEM_OK;
}

static tandem_status make_nodes(maker *m)
{
    tandem_status status = TANDEM_OK;
    fetch_uniforms(m);
    for (uint32_t i = 0; i < m->graph->node_count && status == TANDEM_OK; i++)
        status = make_node(m, i);
    return status;
}

/* --- Programs --- */

static tandem_status make(maker *m)
{
    td_arena *memory = &m->program->memory;
    const size_t tensors = m->graph->tensor_count, nodes = m->graph->node_count;
    uint32_t sm;

    m->tensors = td_arena_take(memory, tensors * sizeof *m->tensors, _Alignof(td_program_tensor));
    m->nodes = td_arena_take(memory, nodes * sizeof *m->nodes, _Alignof(td_program_node));
    m->bindings =
        td_arena_take(memory, TD_GRAPH_BINDINGS * sizeof *m->bindings, _Alignof(uint32_t));
    m->before = calloc(tensors, sizeof *m->before);
    m->behind = calloc(tensors, sizeof *m->behind);
    if (!m->tensors || !m->nodes || !m->bindings || !m->before || !m->behind)
        return td_program_no_memory(m);
    if (!td_target_kernels(&m->target, &m->at.cubin, &sm, m->why, m->why_bytes))
        return TANDEM_ERROR_UNSUPPORTED;
    tandem_status status = check_numbers(m);
    if (status == TANDEM_OK)
        status = make_tensors(m);
    if (status == TANDEM_OK)
        status = make_nodes(m);
    if (status == TANDEM_OK)
        status = td_program_make_end(m);
    if (status == TANDEM_OK)
        status = td_build_end(&m->at, m->why, m->why_bytes);
    if (status == TANDEM_OK)
        status = td_program_make_patches(m);
    m->program->tensors = m->tensors;
    m->program->samples = m->samples;
    m->program->nodes = m->nodes;
    m->program->bindings = m->bindings;
    m->program->tensor_count = m->graph->tensor_count;
    m->program->node_count = m->graph->node_count;
    m->plan->view_count = TD_PROGRAM_BINDINGS + m->program->binding_count + (m->program->sample_count != 0);
    for (uint32_t i = 0; i < m->plan->record_count; i++)
        m->program->chain += !i || m->plan->records[i].barrier != TD_BARRIER_NONE;
    return status;
}

tandem_status td_program_build(const td_graph *graph, const uint32_t *numbers,
                               const td_target *target, const td_program **program, char *why,
                               size_t why_bytes)
{
    td_program *made = calloc(1, sizeof *made);
    maker m = {.graph = graph,
               .numbers = numbers,
               .target = *target,
               .commit = target->commit,
               .program = made,
               .plan = made ? td_plan_create() : NULL,
               .why = why, .why_bytes = why_bytes};

    *program = made;
    if (!m.plan) {
        free(made);
        *program = NULL;
        return td_program_no_memory(&m);
    }
    made->users = 1;
    made->plan = m.plan;
    m.target.commit = false;
    m.target.whole = NULL;
    m.target.position = 0;
    m.at = td_build_begin(m.plan, &m.target);
    const tandem_status status = make(&m);
    td_plan_free(&m.part);
    free(m.before);
    free(m.behind);
    if (status != TANDEM_OK)
        td_program_drop(program);
    return status;
}

const td_program *td_program_use(const td_program *program)
{
    __atomic_fetch_add((uint32_t *)(uintptr_t)&program->users, 1, __ATOMIC_RELAXED);
    return program;
}

void td_program_drop(const td_program **program)
{
    td_program *it = (td_program *)(uintptr_t)*program;

    *program = NULL;
    if (!it || __atomic_sub_fetch(&it->users, 1, __ATOMIC_ACQ_REL))
        return;
    td_plan_drop(&it->plan);
    td_arena_free(&it->memory);
    free(it);
}

double td_program_floor_us(const td_program *program, bool by_graph)
{
    return program->chain * (by_graph ? 1.2 : 2.3);
}
