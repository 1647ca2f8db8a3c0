/* The file of a model that is loaded: safetensors, or GGUF with the graph that is made for it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/network.h"
#include "interop/os/descriptor.h"
#include "interop/os/file.h"
#include "interop/os/memory.h"
#include "kernels/model/folder.h"

enum { TENSOR_ALIGNMENT = 256, PREFIX_BYTES = 8 /* a length */ };

static bool is_gguf(const td_model_load *load)
{
    return load->gguf.tensors != NULL;
}

/* --- Opening --- */

/* Whether a file begins as GGUF files do; one that cannot be read does not. */
static bool begins_as_gguf(const char *path)
{
    char magic[4] = "";
    uint64_t bytes;
    int file;

    if (td_file_open(path, &file, &bytes, NULL, 0) != TANDEM_OK)
        return false;
    const bool read = td_file_read(file, 0, magic, sizeof magic, NULL, 0) == TANDEM_OK;
    td_fd_close(&file);
    return read && !memcmp(magic, "GGUF", sizeof magic);
}

static tandem_status open_gguf(td_model_load *load, const tandem_model_desc *desc, char *why)
{
    const td_llama_desc llama = {.slots = desc->sequences ? desc->sequences : 1, .context = desc->context,
                                 .cache = desc->cache, .pages = desc->pages, .hidden = desc->hidden, .tops = desc->tops,
                                  .tiles = load->s->target.sm != 0};
    tandem_status status = td_checkpoint_open(desc->path, &load->gguf, why, TD_WHY_BYTES);

    if (status == TANDEM_OK)
        status = td_llama_open(&load->gguf, &llama, &load->llama, why, TD_WHY_BYTES);
    if (status == TANDEM_OK)
        status = td_network_make(load->s, &load->llama.graph, &load->model->network, why);
    return status;
}

static tandem_status open_safetensors(td_model_load *load, const tandem_model_desc *desc, char *why)
{
    const tandem_status status = td_safetensors_open(desc->path, &load->file, why, TD_WHY_BYTES);

    if (status != TANDEM_OK)
        return status;
    if (desc->sequences || desc->context || desc->cache || desc->pages || desc->hidden || desc->tops)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.sequences is %" PRIu32 ", desc.context %" PRIu32 " and desc.cache %" PRIu32
                       "; all must be 0, as must desc.pages, desc.hidden and desc.tops, which are %" PRIu32
                       ", %" PRIu32 " and %" PRIu32 ", as this is no GGUF file",
                       desc->sequences, desc->context, desc->cache, desc->pages, desc->hidden, desc->tops);
    return td_network_read(load->s, &load->file, &load->model->network, why);
}

tandem_status td_model_file_open(td_model_load *load, const tandem_model_desc *desc, char *why)
{
    return begins_as_gguf(desc->path) || td_folder_is(desc->path) ? open_gguf(load, desc, why) : open_safetensors(load, desc, why);
}

void td_model_file_close(td_model_load *load)
{
    td_safetensors_close(&load->file);
    td_llama_close(&load->llama);
    td_gguf_close(&load->gguf);
}

/* --- Where its tensors lie --- */

static uint64_t network_weight_bytes(const td_model *model)
{
    return model->network ? model->network->weight_bytes : 0;
}

/* Room for entries with names of so many bytes, ends included. */
static tandem_status make_entries(td_model_load *load, uint32_t count, uint64_t name_bytes, char *why)
{
    td_model *model = load->model;

    model->block_bytes = count * sizeof *model->tensors + name_bytes + 1; /* a file may have no tensor */
    model->tensors = td_session_alloc(load->s, model->block_bytes, 64);
    if (!model->tensors)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM,
                       "no host memory for the names of %" PRIu32 " tensors", count);
    model->tensor_count = count;
    return TANDEM_OK;
}

static void name_entry(td_tensor_entry *entry, char **names, const char *name)
{
    entry->name = *names;
    *names += strlen(strcpy(*names, name)) + 1;
}

static void describe_safetensor(td_tensor_entry *entry, const td_safetensor *tensor, uint64_t offset)
{
    const uint32_t pad = tensor->dimensions <= 4 ? 4 - tensor->dimensions : 0;

    for (uint32_t i = 0; i < 4; i++)
        entry->shape[i] = i < pad ? 1 : tensor->shape[i - pad];
    if (tensor->dimensions > 4)
        entry->refused = "more than 4 dimensions";
    else if (tensor->dtype == TANDEM_DTYPE_NONE)
        entry->refused = tensor->dtype_name;
    entry->view = (tandem_view){
        .offset_bytes = offset,
        .dtype = tensor->dtype,
        .stride_batch = (int64_t)(entry->shape[1] * entry->shape[2] * entry->shape[3]),
        .stride_head = (int64_t)(entry->shape[2] * entry->shape[3]),
        .stride_row = (int64_t)entry->shape[3],
    };
}

/* Weights of a network come first, as its programs have them. */
static tandem_status lay_out_safetensors(td_model_load *load, uint64_t *bytes, char *why)
{
    const td_safetensors *file = &load->file;
    uint64_t name_bytes = 0, offset = network_weight_bytes(load->model);

    for (uint32_t i = 0; i < file->count; i++)
        name_bytes += strlen(file->tensors[i].name) + 1;
    const tandem_status status = make_entries(load, file->count, name_bytes, why);
    if (status != TANDEM_OK)
        return status;
    char *names = (char *)(load->model->tensors + file->count);
    for (uint32_t i = 0; i < file->count; i++) {
        const td_safetensor *tensor = &file->tensors[i];
        td_tensor_entry *entry = &load->model->tensors[i];
        uint64_t at;
        const bool placed = td_network_weight(load->model->network, tensor->name, &at);

        describe_safetensor(entry, tensor, placed ? at : offset);
        name_entry(entry, &names, tensor->name);
        if (!entry->refused && !placed)
            offset = td_align_up(offset + tensor->bytes, TENSOR_ALIGNMENT);
    }
    *bytes = offset;
    return TANDEM_OK;
}

/* A matrix or a vector of the file, as it is among weights. */
static void describe_part(td_tensor_entry *entry, const td_gguf_tensor *part, uint32_t dtype, uint64_t offset)
{
    entry->shape[0] = entry->shape[1] = 1;
    entry->shape[2] = part->shape[1];
    entry->shape[3] = part->shape[0];
    entry->view = (tandem_view){
        .offset_bytes = offset,
        .dtype = dtype,
        .stride_batch = (int64_t)(part->shape[1] * part->shape[0]),
        .stride_head = (int64_t)(part->shape[1] * part->shape[0]),
        .stride_row = (int64_t)part->shape[0],
    };
}

static tandem_status lay_out_gguf(td_model_load *load, uint64_t *bytes, char *why)
{
    const td_llama *llama = &load->llama;
    uint64_t name_bytes = 0;
    uint32_t count = 0;

    for (uint32_t i = 0; i < llama->weight_count; i++)
        for (int p = 0; p < TD_LLAMA_PARTS && llama->weights[i].parts[p]; p++, count++)
            name_bytes += strlen(llama->weights[i].parts[p]->name) + 1;
    const tandem_status status = make_entries(load, count, name_bytes, why);
    if (status != TANDEM_OK)
        return status;
    td_tensor_entry *entry = load->model->tensors;
    char *names = (char *)(entry + count);
    for (uint32_t i = 0; i < llama->weight_count; i++) {
        const td_llama_weight *weight = &llama->weights[i];
        uint64_t offset = load->model->network->tensors[weight->tensor].offset;

        for (int p = 0; p < TD_LLAMA_PARTS && weight->parts[p]; p++, entry++) {
            describe_part(entry, weight->parts[p], weight->dtype, offset);
            name_entry(entry, &names, weight->parts[p]->name);
            offset += td_llama_part_bytes(weight, weight->parts[p]);
        }
    }
    *bytes = network_weight_bytes(load->model);
    return TANDEM_OK;
}

tandem_status td_model_file_lay_out(td_model_load *load, uint64_t *bytes, char *why)
{
    const tandem_status status =
        is_gguf(load) ? lay_out_gguf(load, bytes, why) : lay_out_safetensors(load, bytes, why);

    if (status == TANDEM_OK && !*bytes)
        *bytes = TENSOR_ALIGNMENT;
    return status;
}

/* --- Its bytes --- */

bool td_model_file_piece(const td_model_load *load, uint32_t index, td_model_piece *piece)
{
    const td_model *model = load->model;

    if (is_gguf(load)) {
        if (index >= load->llama.weight_count)
            return false;
        const td_program_tensor *tensor = &model->network->tensors[load->llama.weights[index].tensor];

        *piece = (td_model_piece){tensor->name, tensor->offset, tensor->bytes};
        return true;
    }
    if (index >= model->tensor_count)
        return false;
    const td_tensor_entry *entry = &model->tensors[index];
    *piece = (td_model_piece){entry->name, entry->view.offset_bytes,
                              entry->refused ? 0 : load->file.tensors[index].bytes};
    return true;
}

tandem_status td_model_file_read(td_model_load *load, uint64_t bytes, void *to, char *why)
{
    if (!is_gguf(load))
        return td_safetensors_read_part(&load->file, &load->file.tensors[load->piece], load->at, bytes, to, why,
                                        TD_WHY_BYTES);
    td_llama_read_weight(&load->llama, load->piece, load->at, bytes, to);
    return TANDEM_OK;
}

/* --- What a client of a worker's reads of it --- */

static tandem_status keep_safetensors(const td_safetensors *file, int *fd, char *why)
{
    uint64_t bytes = 0;
    tandem_status status = td_file_read(file->fd, 0, &bytes, PREFIX_BYTES, why, TD_WHY_BYTES);
    void *header;

    if (status != TANDEM_OK)
        return status;
    if (bytes > file->file_bytes - PREFIX_BYTES)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_IO, "the file has changed meanwhile");
    header = malloc(PREFIX_BYTES + bytes);
    if (!header)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for the file's header");
    status = td_file_read(file->fd, 0, header, PREFIX_BYTES + bytes, why, TD_WHY_BYTES);
    if (status == TANDEM_OK)
        status = td_memfd_make_sparse("tandem-graph", header, PREFIX_BYTES + bytes, PREFIX_BYTES + bytes, fd, why, TD_WHY_BYTES);
    free(header);
    return status;
}

static tandem_status keep_gguf(const td_gguf *file, int *fd, char *why)
{
    uint64_t bytes = file->size;

    if (!file->bytes)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "tandemd computes no folder's model, but GGUF files");

    for (uint32_t i = 0; i < file->tensor_count; i++)
        bytes = file->tensors[i].offset < bytes ? file->tensors[i].offset : bytes;
    return td_memfd_make_sparse("tandem-graph", file->bytes, bytes, bytes, fd, why, TD_WHY_BYTES);
}

/* Without a hole for the weights: a client that mapped and read it would have pages made of it, which count as nobody's. */
tandem_status td_model_file_keep_header(td_model_load *load, char *why)
{
    int fd = -1;
    const tandem_status status =
        is_gguf(load) ? keep_gguf(&load->gguf, &fd, why) : keep_safetensors(&load->file, &fd, why);

    if (status == TANDEM_OK) {
        load->model->header = fd;
        load->model->header_bytes = is_gguf(load) ? load->gguf.size : load->file.file_bytes;
    }
    return status;
}
