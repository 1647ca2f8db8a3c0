/* Memory and timelines that another API or process can share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "interop/os/descriptor.h"
#include "interop/os/memory.h"
#include "interop/vk/table.h"

static tandem_status check_size(td_vk *vk, uint64_t bytes, const td_vk_mem *out, char *why, size_t why_bytes)
{
    if (!vk)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "vk is NULL");
    if (!out)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "out is NULL");
    if (bytes == 0)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "bytes is 0");
    if (bytes > vk->max_allocation_bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "bytes is %" PRIu64 ", %s allocates at most %" PRIu64, bytes,
                       vk->caps.name, vk->max_allocation_bytes);
    return TANDEM_OK;
}

static tandem_status check_usage(VkBufferUsageFlags usage, char *why, size_t why_bytes)
{
    if (usage == 0)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "usage is 0");
    return TANDEM_OK;
}

tandem_status td_vk_address_memory(td_vk *vk, bool on, char *why, size_t why_bytes)
{
    if (!vk)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "vk is NULL");
    if (on && !vk->caps.inline_kernels)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "no device addresses: the device does not run kernels in command buffers");
    vk->addressed = on;
    return TANDEM_OK;
}

static tandem_status create_buffer(td_vk *vk, uint64_t bytes, VkBufferUsageFlags usage,
                                   VkExternalMemoryHandleTypeFlags handles, VkBuffer *buffer, char *why,
                                   size_t why_bytes)
{
    VkExternalMemoryBufferCreateInfo external = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                 .handleTypes = handles};
    VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                               .pNext = handles ? &external : NULL,
                               .size = bytes,
                               .usage = usage | (vk->addressed ? VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT : 0),
                               .sharingMode = VK_SHARING_MODE_EXCLUSIVE};
    VkResult result;

    if (vk->family_count > 1) {
        info.sharingMode = VK_SHARING_MODE_CONCURRENT;
        info.queueFamilyIndexCount = vk->family_count;
        info.pQueueFamilyIndices = vk->families;
    }
    result = vk->fn.CreateBuffer(vk->device, &info, NULL, buffer);

    if (result != VK_SUCCESS) {
        *buffer = VK_NULL_HANDLE;
        return td_vk_result(result, "vkCreateBuffer", why, why_bytes);
    }
    td_vk_name(vk, VK_OBJECT_TYPE_BUFFER, (uint64_t)*buffer, "tandem mem");
    return TANDEM_OK;
}

static VkMemoryRequirements requirements(td_vk *vk, VkBuffer buffer, bool *dedicated)
{
    VkBufferMemoryRequirementsInfo2 info = {.sType = VK_STRUCTURE_TYPE_BUFFER_MEMORY_REQUIREMENTS_INFO_2,
                                            .buffer = buffer};
    VkMemoryDedicatedRequirements asks = {.sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_REQUIREMENTS};
    VkMemoryRequirements2 needs = {.sType = VK_STRUCTURE_TYPE_MEMORY_REQUIREMENTS_2, .pNext = &asks};

    vk->fn.GetBufferMemoryRequirements2(vk->device, &info, &needs);
    *dedicated = asks.requiresDedicatedAllocation || asks.prefersDedicatedAllocation;
    return needs.memoryRequirements;
}

/* The first type among `bits` with all of `must` and, where there is one, all of `better`; -1 if none. */
static int memory_type(const td_vk *vk, uint32_t bits, VkMemoryPropertyFlags must, VkMemoryPropertyFlags better)
{
    for (int pass = 0; pass < 2; pass++) {
        VkMemoryPropertyFlags want = pass ? must : must | better;

        for (uint32_t i = 0; i < vk->memory.memoryTypeCount; i++)
            if ((bits >> i & 1) && (vk->memory.memoryTypes[i].propertyFlags & want) == want)
                return (int)i;
    }
    return -1;
}

static tandem_status allocate(td_vk *vk, VkMemoryAllocateInfo *info, VkDeviceMemory *memory, char *why,
                              size_t why_bytes)
{
    VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                       .pNext = info->pNext,
                                       .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    VkResult result;
    uint64_t heap = vk->memory.memoryHeaps[vk->memory.memoryTypes[info->memoryTypeIndex].heapIndex].size;

    if (info->allocationSize > heap)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "%" PRIu64 " bytes do not fit a heap of %" PRIu64,
                       (uint64_t)info->allocationSize, heap);
    if (vk->addressed)
        info->pNext = &flags;
    result = vk->fn.AllocateMemory(vk->device, info, NULL, memory);
    if (result != VK_SUCCESS) {
        *memory = VK_NULL_HANDLE;
        return td_vk_result(result, "vkAllocateMemory", why, why_bytes);
    }
    return TANDEM_OK;
}

static tandem_status find_address(td_vk *vk, td_vk_mem *mem, char *why, size_t why_bytes)
{
    uint64_t address;

    if (!vk->addressed)
        return TANDEM_OK;
    address = vk->fn.GetBufferDeviceAddress(
        vk->device,
        &(VkBufferDeviceAddressInfo){.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, .buffer = mem->buffer});
    if (!address)
        return td_fail(why, why_bytes, TANDEM_ERROR_DEVICE, "vkGetBufferDeviceAddress: 0");
    mem->address = address + mem->buffer_offset;
    return TANDEM_OK;
}

static tandem_status bind(td_vk *vk, td_vk_mem *mem, VkDeviceMemory memory, char *why, size_t why_bytes)
{
    VkResult result = vk->fn.BindBufferMemory(vk->device, mem->buffer, memory, mem->offset);

    if (result != VK_SUCCESS)
        return td_vk_result(result, "vkBindBufferMemory", why, why_bytes);
    return find_address(vk, mem, why, why_bytes);
}

static tandem_status create_private(td_vk *vk, uint64_t bytes, VkBufferUsageFlags usage, VkMemoryPropertyFlags must,
                                    VkMemoryPropertyFlags better, td_vk_mem *out, char *why, size_t why_bytes)
{
    VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    td_vk_mem mem = {.bytes = bytes, .owned = true, .memfd = -1};
    VkMemoryRequirements needs;
    tandem_status status;
    VkResult result;
    bool ignored;
    int type;

    status = check_size(vk, bytes, out, why, why_bytes);
    if (status == TANDEM_OK)
        status = check_usage(usage, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    status = create_buffer(vk, bytes, usage, 0, &mem.buffer, why, why_bytes);
    if (status != TANDEM_OK)
        goto fail;
    needs = requirements(vk, mem.buffer, &ignored);
    mem.allocation_bytes = needs.size;
    type = memory_type(vk, needs.memoryTypeBits, must, better);
    if (type < 0) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "no memory type with flags 0x%x among 0x%x", must,
                         needs.memoryTypeBits);
        goto fail;
    }
    info.allocationSize = needs.size;
    info.memoryTypeIndex = (uint32_t)type;
    status = allocate(vk, &info, &mem.memory, why, why_bytes);
    if (status == TANDEM_OK)
        status = bind(vk, &mem, mem.memory, why, why_bytes);
    if (status == TANDEM_OK && (must & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT)) {
        result = vk->fn.MapMemory(vk->device, mem.memory, 0, VK_WHOLE_SIZE, 0, &mem.host);
        if (result != VK_SUCCESS) {
            mem.host = NULL;
            status = td_vk_result(result, "vkMapMemory", why, why_bytes);
        }
    }
    if (status != TANDEM_OK)
        goto fail;
    *out = mem;
    return TANDEM_OK;

fail:
    td_vk_mem_free(vk, &mem);
    return status;
}

tandem_status td_vk_mem_create_device(td_vk *vk, uint64_t bytes, VkBufferUsageFlags usage, td_vk_mem *out, char *why,
                                      size_t why_bytes)
{
    return create_private(vk, bytes, usage, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0, out, why, why_bytes);
}

tandem_status td_vk_mem_create_mapped(td_vk *vk, uint64_t bytes, VkBufferUsageFlags usage, td_vk_mem *out, char *why,
                                      size_t why_bytes)
{
    return create_private(vk, bytes, usage, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                          VK_MEMORY_PROPERTY_HOST_CACHED_BIT, out, why, why_bytes);
}

tandem_status td_vk_mem_create_near(td_vk *vk, uint64_t bytes, VkBufferUsageFlags usage, td_vk_mem *out, char *why,
                                    size_t why_bytes)
{
    return create_private(vk, bytes, usage,
                          VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT |
                              VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
                          0, out, why, why_bytes);
}

tandem_status td_vk_mem_create_export(td_vk *vk, uint64_t bytes, VkBufferUsageFlags usage, td_vk_mem *out, char *why,
                                      size_t why_bytes)
{
    VkPhysicalDeviceExternalBufferInfo query = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
                                                .usage = usage,
                                                .handleType = (VkExternalMemoryHandleTypeFlagBits)td_opaque.memory_type};
    VkExternalBufferProperties answer = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};
    VkMemoryDedicatedAllocateInfo dedicated = {.sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO};
    VkExportMemoryAllocateInfo export = {.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
                                         .handleTypes = td_opaque.memory_type};
    VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &export};
    td_vk_mem mem = {.bytes = bytes, .owned = true, .memfd = -1};
    VkExternalMemoryFeatureFlags features;
    VkMemoryRequirements needs;
    tandem_status status;
    int type;

    status = check_size(vk, bytes, out, why, why_bytes);
    if (status == TANDEM_OK)
        status = check_usage(usage, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    if (!vk->caps.export_memory)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "memory cannot be exported: %s %s",
                       td_opaque_memory_extension, vk->caps.lacks.memory_export);
    vk->fn.GetPhysicalDeviceExternalBufferProperties(vk->physical_device, &query, &answer);
    features = answer.externalMemoryProperties.externalMemoryFeatures;
    if (!(features & VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s exports no buffers with usage 0x%x", vk->caps.name,
                       usage);

    status = create_buffer(vk, bytes, usage, export.handleTypes, &mem.buffer, why, why_bytes);
    if (status != TANDEM_OK)
        goto fail;
    needs = requirements(vk, mem.buffer, &mem.dedicated);
    mem.dedicated = mem.dedicated || (features & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT);
    mem.allocation_bytes = needs.size;
    type = memory_type(vk, needs.memoryTypeBits, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0);
    if (type < 0) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "no device-local memory type among 0x%x",
                         needs.memoryTypeBits);
        goto fail;
    }
    if (mem.dedicated) {
        dedicated.buffer = mem.buffer;
        export.pNext = &dedicated;
    }
    info.allocationSize = needs.size;
    info.memoryTypeIndex = (uint32_t)type;
    status = allocate(vk, &info, &mem.memory, why, why_bytes);
    if (status == TANDEM_OK)
        status = bind(vk, &mem, mem.memory, why, why_bytes);
    if (status != TANDEM_OK)
        goto fail;
    *out = mem;
    return TANDEM_OK;

fail:
    td_vk_mem_free(vk, &mem);
    return status;
}

/* Imports mem->host, mem->allocation_bytes long, and puts a buffer of mem->bytes over it. */
static tandem_status import_host(td_vk *vk, VkBufferUsageFlags usage, td_vk_mem *mem, char *why, size_t why_bytes)
{
    const VkExternalMemoryHandleTypeFlagBits handle = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
    VkMemoryHostPointerPropertiesEXT properties = {.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
    VkImportMemoryHostPointerInfoEXT import = {.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
                                               .handleType = handle,
                                               .pHostPointer = mem->host};
    VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &import};
    VkMemoryRequirements needs;
    tandem_status status;
    VkResult result;
    bool dedicated;
    int type;

    status = create_buffer(vk, mem->bytes, usage, handle, &mem->buffer, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    needs = requirements(vk, mem->buffer, &dedicated);
    if (needs.size > mem->allocation_bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "%s wants %" PRIu64 " bytes for a buffer over %" PRIu64, vk->caps.name, (uint64_t)needs.size,
                       mem->allocation_bytes);
    result = vk->fn.GetMemoryHostPointerPropertiesEXT(vk->device, handle, mem->host, &properties);
    if (result != VK_SUCCESS)
        return td_vk_result(result, "vkGetMemoryHostPointerPropertiesEXT", why, why_bytes);
    /* Nothing else is flushed or invalidated: only coherent memory will do. */
    type = memory_type(vk, needs.memoryTypeBits & properties.memoryTypeBits, VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                       VK_MEMORY_PROPERTY_HOST_CACHED_BIT);
    if (type < 0)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "no coherent memory type among 0x%x & 0x%x",
                       needs.memoryTypeBits, properties.memoryTypeBits);
    info.allocationSize = mem->allocation_bytes;
    info.memoryTypeIndex = (uint32_t)type;
    status = allocate(vk, &info, &mem->memory, why, why_bytes);
    if (status == TANDEM_OK)
        status = bind(vk, mem, mem->memory, why, why_bytes);
    return status;
}

static tandem_status no_import(char *why, size_t why_bytes)
{
    return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "host memory cannot be imported: %s is not enabled",
                   VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
}

tandem_status td_vk_mem_create_host(td_vk *vk, uint64_t bytes, VkBufferUsageFlags usage, td_vk_mem *out, char *why,
                                    size_t why_bytes)
{
    td_vk_mem mem = {.bytes = bytes, .owned = true, .memfd = -1};
    tandem_status status;
    uint64_t page;

    status = check_size(vk, bytes, out, why, why_bytes);
    if (status == TANDEM_OK)
        status = check_usage(usage, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    if (!vk->caps.import_host)
        return no_import(why, why_bytes);
    page = td_page_bytes();
    if (vk->caps.host_alignment > page)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "the device imports host memory aligned to %" PRIu64 " bytes, mmap aligns to %" PRIu64,
                       vk->caps.host_alignment, page);
    mem.allocation_bytes = td_align_up(bytes, page);
    status = td_memfd_make("tandem", mem.allocation_bytes, true, &mem.memfd, why, why_bytes);
    if (status == TANDEM_OK)
        status = td_memfd_map(mem.memfd, mem.allocation_bytes, &mem.host, why, why_bytes);
    if (status == TANDEM_OK)
        status = import_host(vk, usage, &mem, why, why_bytes);
    if (status != TANDEM_OK)
        goto fail;
    *out = mem;
    return TANDEM_OK;

fail:
    td_vk_mem_free(vk, &mem);
    return status;
}

tandem_status td_vk_mem_import_host(td_vk *vk, void *host, uint64_t bytes, VkBufferUsageFlags usage, td_vk_mem *out,
                                    char *why, size_t why_bytes)
{
    td_vk_mem mem = {.bytes = bytes, .allocation_bytes = bytes, .owned = true, .host = host, .memfd = -1};
    tandem_status status;

    status = check_size(vk, bytes, out, why, why_bytes);
    if (status == TANDEM_OK)
        status = check_usage(usage, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    if (!vk->caps.import_host)
        return no_import(why, why_bytes);
    if (!host)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "host is NULL");
    /* Drivers differ in what they check: some take any pointer and round it. */
    if ((uintptr_t)host % vk->caps.host_alignment)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "host is %p, not aligned to %" PRIu64, host,
                       vk->caps.host_alignment);
    if (bytes % vk->caps.host_alignment)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "bytes is %" PRIu64 ", not a multiple of %" PRIu64, bytes,
                       vk->caps.host_alignment);
    status = import_host(vk, usage, &mem, why, why_bytes);
    if (status != TANDEM_OK) {
        td_vk_mem_free(vk, &mem);
        return status;
    }
    *out = mem;
    return TANDEM_OK;
}

/* Where a buffer over a dma-buf may be: a memory type of the fd's and the buffer's, or ARG or UNSUPPORTED. */
static tandem_status place_dma_buf(td_vk *vk, int fd, td_vk_mem *mem, uint32_t *type, char *why, size_t why_bytes)
{
    VkMemoryFdPropertiesKHR properties = {.sType = VK_STRUCTURE_TYPE_MEMORY_FD_PROPERTIES_KHR};
    const VkResult result = vk->fn.GetMemoryFdPropertiesKHR(vk->device, VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT, fd,
                                                            &properties);
    VkMemoryRequirements needs;
    bool ignored;
    int found;

    if (result != VK_SUCCESS) {
        td_vk_result(result, "vkGetMemoryFdPropertiesKHR", why, why_bytes);
        return TANDEM_ERROR_ARG;
    }
    needs = requirements(vk, mem->buffer, &ignored);
    if (mem->offset % needs.alignment)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "offset is %" PRIu64 ", not a multiple of %" PRIu64, mem->offset,
                       (uint64_t)needs.alignment);
    if (needs.size > mem->allocation_bytes - mem->offset)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "a buffer of %" PRIu64 " bytes takes %" PRIu64 ", %" PRIu64 " are left",
                       mem->bytes, (uint64_t)needs.size, mem->allocation_bytes - mem->offset);
    found = memory_type(vk, needs.memoryTypeBits & properties.memoryTypeBits, 0, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    if (found < 0)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "no memory type among 0x%x & 0x%x", needs.memoryTypeBits,
                       properties.memoryTypeBits);
    *type = (uint32_t)found;
    return TANDEM_OK;
}

tandem_status td_vk_mem_import_dma_buf(td_vk *vk, int fd, uint64_t allocation_bytes, uint64_t offset, uint64_t bytes,
                                       VkBufferUsageFlags usage, td_vk_mem *out, char *why, size_t why_bytes)
{
    const VkExternalMemoryHandleTypeFlagBits handle = VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT;
    VkPhysicalDeviceExternalBufferInfo query = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO, .usage = usage, .handleType = handle};
    VkExternalBufferProperties answer = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};
    VkImportMemoryFdInfoKHR import = {
        .sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR, .handleType = handle, .fd = -1};
    VkMemoryAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &import, .allocationSize = allocation_bytes};
    td_vk_mem mem = {.bytes = bytes, .allocation_bytes = allocation_bytes, .offset = offset, .owned = true, .memfd = -1};
    VkExternalMemoryFeatureFlags features;
    tandem_status status = check_size(vk, bytes, out, why, why_bytes);
    uint64_t end;

    if (status != TANDEM_OK)
        return status;
    if (!td_add_u64(offset, bytes, &end) || end > allocation_bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "offset %" PRIu64 " + bytes %" PRIu64 " is beyond allocation_bytes %" PRIu64, offset, bytes,
                       allocation_bytes);
    if (!vk->caps.import_dma_buf)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "VK_EXT_external_memory_dma_buf is not enabled");
    vk->fn.GetPhysicalDeviceExternalBufferProperties(vk->physical_device, &query, &answer);
    features = answer.externalMemoryProperties.externalMemoryFeatures;
    if (!(features & VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT) || (features & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s puts no buffer over %s dma-buf", vk->caps.name,
                       features & VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT ? "a part of a" : "a");
    status = create_buffer(vk, bytes, usage, handle, &mem.buffer, why, why_bytes);
    if (status == TANDEM_OK)
        status = place_dma_buf(vk, fd, &mem, &info.memoryTypeIndex, why, why_bytes);
    if (status == TANDEM_OK) {
        import.fd = td_fd_dup(fd); /* the device's, once it is imported */
        status = import.fd < 0 ? td_fail(why, why_bytes, TANDEM_ERROR_ARG, "fd is %d: %s", fd, strerror(errno))
                               : allocate(vk, &info, &mem.memory, why, why_bytes);
        if (status != TANDEM_OK)
            td_fd_close(&import.fd);
    }
    if (status == TANDEM_OK)
        status = bind(vk, &mem, mem.memory, why, why_bytes);
    if (status == TANDEM_OK)
        *out = mem;
    else
        td_vk_mem_free(vk, &mem);
    return status;
}

/* That `mem` is within memory of the engine's. */
static tandem_status check_within(td_vk *vk, const td_vk_mem *mem, const td_vk_mem *out, char *why, size_t why_bytes)
{
    tandem_status status = check_size(vk, mem->bytes, out, why, why_bytes);
    uint64_t end;

    if (status != TANDEM_OK)
        return status;
    if (!mem->memory)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "memory is VK_NULL_HANDLE");
    if (!td_add_u64(mem->offset, mem->bytes, &end) || end > mem->allocation_bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "offset %" PRIu64 " + bytes %" PRIu64 " is beyond allocation_bytes %" PRIu64, mem->offset,
                       mem->bytes, mem->allocation_bytes);
    return TANDEM_OK;
}

static tandem_status check_alignment(uint64_t offset, uint64_t alignment, char *why, size_t why_bytes)
{
    if (offset % alignment == 0)
        return TANDEM_OK;
    return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "offset is %" PRIu64 ", not a multiple of %" PRIu64, offset,
                   alignment);
}

tandem_status td_vk_mem_wrap_buffer(td_vk *vk, VkBuffer buffer, VkDeviceMemory memory, uint64_t allocation_bytes,
                                    uint64_t offset, uint64_t bytes, bool dedicated, td_vk_mem *out, char *why,
                                    size_t why_bytes)
{
    td_vk_mem mem = {.buffer = buffer,
                     .buffer_offset = offset,
                     .engines_buffer = true,
                     .memory = memory,
                     .allocation_bytes = allocation_bytes,
                     .offset = offset,
                     .bytes = bytes,
                     .dedicated = dedicated,
                     .memfd = -1};
    VkMemoryRequirements needs;
    tandem_status status;
    bool ignored;

    status = check_within(vk, &mem, out, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    if (!buffer)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "buffer is VK_NULL_HANDLE");
    needs = requirements(vk, buffer, &ignored);
    if (offset + bytes > needs.size)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "offset %" PRIu64 " + bytes %" PRIu64 " is beyond the buffer, which takes %" PRIu64, offset, bytes,
                       (uint64_t)needs.size);
    status = check_alignment(offset, needs.alignment, why, why_bytes);
    if (status == TANDEM_OK)
        status = find_address(vk, &mem, why, why_bytes);
    if (status == TANDEM_OK)
        *out = mem;
    return status;
}

tandem_status td_vk_mem_wrap(td_vk *vk, VkDeviceMemory memory, uint64_t allocation_bytes, uint64_t offset,
                             uint64_t bytes, bool dedicated, td_vk_mem *out, char *why, size_t why_bytes)
{
    td_vk_mem mem = {.memory = memory,
                     .allocation_bytes = allocation_bytes,
                     .offset = offset,
                     .bytes = bytes,
                     .dedicated = dedicated,
                     .memfd = -1};
    VkMemoryRequirements needs;
    tandem_status status;
    bool ignored;

    status = check_within(vk, &mem, out, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    if (dedicated) {
        /* Only the resource that it was allocated for may be bound to it: the engine's own. */
        *out = mem;
        return TANDEM_OK;
    }
    status = create_buffer(
        vk, bytes,
        VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
        vk->caps.export_memory ? td_opaque.memory_type : 0, &mem.buffer, why, why_bytes);
    if (status != TANDEM_OK)
        goto fail;
    needs = requirements(vk, mem.buffer, &ignored);
    status = check_alignment(offset, needs.alignment, why, why_bytes);
    if (status != TANDEM_OK)
        goto fail;
    if (needs.size > allocation_bytes - offset) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                         "a buffer of %" PRIu64 " bytes takes %" PRIu64 ", allocation_bytes leaves %" PRIu64, bytes,
                         (uint64_t)needs.size, allocation_bytes - offset);
        goto fail;
    }
    status = bind(vk, &mem, memory, why, why_bytes);
    if (status != TANDEM_OK)
        goto fail;
    *out = mem;
    return TANDEM_OK;

fail:
    td_vk_mem_free(vk, &mem);
    return status;
}

tandem_status td_vk_mem_export_fd(td_vk *vk, td_vk_mem *mem, int *fd, char *why, size_t why_bytes)
{
    if (!fd)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "fd is NULL");
    *fd = -1;
    if (!vk)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "vk is NULL");
    if (!mem || !mem->memory)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "mem has no memory");
    if (mem->host)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "mem is host memory: it has no %s", td_opaque.name);
    if (!vk->caps.export_memory)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "memory cannot be exported: %s %s",
                       td_opaque_memory_extension, vk->caps.lacks.memory_export);
    return td_vk_export(vk,
                        &(td_vk_handle_info){.sType = (VkStructureType)td_opaque.get_memory_struct,
                                             .object = (uint64_t)mem->memory,
                                             .type = td_opaque.memory_type},
                        &mem->exported, fd, why, why_bytes);
}

void td_vk_mem_forget(td_vk *vk, td_vk_mem *mem)
{
    if (mem->exported)
        td_vk_export_end(vk, td_opaque.get_memory_struct, (uint64_t)mem->memory, false);
    mem->exported = false;
}

void td_vk_mem_free(td_vk *vk, td_vk_mem *mem)
{
    if (!mem)
        return;
    if (vk) {
        td_vk_mem_forget(vk, mem);
        if (mem->buffer && !mem->engines_buffer)
            vk->fn.DestroyBuffer(vk->device, mem->buffer, NULL);
        if (mem->owned && mem->memory)
            vk->fn.FreeMemory(vk->device, mem->memory, NULL);
    }
    if (mem->memfd > 0) { /* a memfd never has 0: that is a zeroed mem */
        if (mem->host)
            td_unmap(mem->host, mem->allocation_bytes);
        td_fd_close(&mem->memfd);
    }
    *mem = (td_vk_mem){0};
}

static tandem_status no_export(const td_vk *vk, char *why, size_t why_bytes)
{
    const td_vk_lacks *lacks = &vk->caps.lacks;

    return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "timelines cannot be exported: %s %s",
                   lacks->semaphore_export ? td_opaque_semaphore_extension : "timelineSemaphore",
                   lacks->semaphore_export ? lacks->semaphore_export : lacks->timeline_feature);
}

tandem_status td_vk_timeline_create(td_vk *vk, uint64_t initial, bool exportable, VkSemaphore *out, char *why,
                                    size_t why_bytes)
{
    VkExportSemaphoreCreateInfo export = {.sType = VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO,
                                          .handleTypes = td_opaque.semaphore_type};
    VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                      .pNext = exportable ? &export : NULL,
                                      .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
                                      .initialValue = initial};
    VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    VkResult result;

    if (!out)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "out is NULL");
    *out = VK_NULL_HANDLE;
    if (!vk)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "vk is NULL");
    if (!vk->caps.timeline)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "there are no timelines: timelineSemaphore %s",
                       vk->caps.lacks.timeline_feature);
    if (exportable && !vk->caps.export_timeline)
        return no_export(vk, why, why_bytes);
    result = vk->fn.CreateSemaphore(vk->device, &info, NULL, out);
    if (result != VK_SUCCESS) {
        *out = VK_NULL_HANDLE;
        return td_vk_result(result, "vkCreateSemaphore", why, why_bytes);
    }
    td_vk_name(vk, VK_OBJECT_TYPE_SEMAPHORE, (uint64_t)*out, "tandem timeline");
    return TANDEM_OK;
}

tandem_status td_vk_timeline_export_fd(td_vk *vk, VkSemaphore semaphore, int *fd, char *why, size_t why_bytes)
{
    bool counted = true; /* td_vk_timeline_forget() ends all */

    if (!fd)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "fd is NULL");
    *fd = -1;
    if (!vk)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "vk is NULL");
    if (!semaphore)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "semaphore is VK_NULL_HANDLE");
    if (!vk->caps.export_timeline)
        return no_export(vk, why, why_bytes);
    return td_vk_export(vk,
                        &(td_vk_handle_info){.sType = (VkStructureType)td_opaque.get_semaphore_struct,
                                             .object = (uint64_t)semaphore,
                                             .type = td_opaque.semaphore_type},
                        &counted, fd, why, why_bytes);
}

void td_vk_timeline_forget(td_vk *vk, VkSemaphore semaphore)
{
    td_vk_export_end(vk, td_opaque.get_semaphore_struct, (uint64_t)semaphore, true);
}

void td_vk_timeline_destroy(td_vk *vk, VkSemaphore *semaphore)
{
    if (!semaphore)
        return;
    if (vk && *semaphore) {
        td_vk_timeline_forget(vk, *semaphore);
        vk->fn.DestroySemaphore(vk->device, *semaphore, NULL);
    }
    *semaphore = VK_NULL_HANDLE;
}

tandem_status td_vk_timeline_value(td_vk *vk, VkSemaphore semaphore, uint64_t *value)
{
    VkResult result;

    if (!vk || !semaphore || !value)
        return TANDEM_ERROR_ARG;
    result = vk->fn.GetSemaphoreCounterValue(vk->device, semaphore, value);
    return result == VK_SUCCESS ? TANDEM_OK : td_vk_result(result, "vkGetSemaphoreCounterValue", NULL, 0);
}

tandem_status td_vk_timeline_signal(td_vk *vk, VkSemaphore semaphore, uint64_t value)
{
    VkSemaphoreSignalInfo info = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = semaphore, .value = value};
    tandem_status status;
    VkResult result;
    uint64_t now;

    status = td_vk_timeline_value(vk, semaphore, &now);
    if (status != TANDEM_OK)
        return status;
    if (value <= now || value - now > vk->max_timeline_difference)
        return TANDEM_ERROR_ARG;
    result = vk->fn.SignalSemaphore(vk->device, &info);
    return result == VK_SUCCESS ? TANDEM_OK : td_vk_result(result, "vkSignalSemaphore", NULL, 0);
}

tandem_status td_vk_timeline_release(td_vk *vk, VkSemaphore semaphore, uint64_t value)
{
    uint64_t now;
    tandem_status status = td_vk_timeline_value(vk, semaphore, &now);

    if (status != TANDEM_OK || value <= now)
        return status;
    return td_vk_timeline_signal(vk, semaphore, value - now > vk->max_timeline_difference
                                                    ? now + vk->max_timeline_difference
                                                    : value);
}

tandem_status td_vk_timeline_wait(td_vk *vk, VkSemaphore semaphore, uint64_t value, uint64_t timeout_ns)
{
    VkSemaphoreWaitInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                .semaphoreCount = 1,
                                .pSemaphores = &semaphore,
                                .pValues = &value};
    VkResult result;

    if (!vk || !semaphore)
        return TANDEM_ERROR_ARG;
    result = vk->fn.WaitSemaphores(vk->device, &info, timeout_ns);
    if (result == VK_TIMEOUT)
        return TANDEM_ERROR_BUSY;
    return result == VK_SUCCESS ? TANDEM_OK : td_vk_result(result, "vkWaitSemaphores", NULL, 0);
}
