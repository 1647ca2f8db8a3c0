/* The compute pipelines behind pack and unpack, each made when it is first recorded.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "interop/vk/table.h"
#include "shaders/images_shared.h"
#include "shaders/pack_shared.h"

static const uint32_t pack_spv[] = {
#include "pack.spv.inc"
};
static const uint32_t unpack_spv[] = {
#include "unpack.spv.inc"
};
static const uint32_t unpack_f32_spv[] = {
#include "unpack_f32.spv.inc"
};
static const uint32_t pack_images_spv[] = {
#include "pack_images.spv.inc"
};
static const uint32_t pack_images_storage_spv[] = {
#include "pack_images_storage.spv.inc"
};
static const uint32_t unpack_images_spv[] = {
#include "unpack_images.spv.inc"
};

/* Binding 0 is of storage buffers, binding 1 of images. */
static const struct {
    const char *name;
    const uint32_t *words;
    size_t bytes;
    VkDescriptorType image_type;
    uint32_t buffers, images, push_bytes;
} programs[TD_VK_PROGRAM_COUNT] = {
#define CODE(spv) spv, sizeof spv
#define SAMPLED VK_DESCRIPTOR_TYPE_SAMPLED_IMAGE
#define STORAGE VK_DESCRIPTOR_TYPE_STORAGE_IMAGE
#define PUSH sizeof(struct td_pack_push)
#define PUSH_IMAGES (TD_IMAGES * sizeof(struct td_image_push))
    [TD_VK_PACK] = {"tandem pack", CODE(pack_spv), SAMPLED, 1, 4, PUSH},
    [TD_VK_UNPACK_F16] = {"tandem unpack rgba16f", CODE(unpack_spv), STORAGE, 1, 1, PUSH},
    [TD_VK_UNPACK_F32] = {"tandem unpack rgba32f", CODE(unpack_f32_spv), STORAGE, 1, 1, PUSH},
    [TD_VK_PACK_IMAGES] = {"tandem pack images", CODE(pack_images_spv), SAMPLED, TD_IMAGES, TD_IMAGES, PUSH_IMAGES},
    [TD_VK_PACK_IMAGES_STORAGE] = {"tandem pack storage images", CODE(pack_images_storage_spv), STORAGE, TD_IMAGES, TD_IMAGES,
                                   PUSH_IMAGES},
    [TD_VK_UNPACK_IMAGES] = {"tandem unpack images", CODE(unpack_images_spv), STORAGE, TD_IMAGES, TD_IMAGES, PUSH_IMAGES},
#undef CODE
#undef SAMPLED
#undef STORAGE
#undef PUSH
#undef PUSH_IMAGES
};

_Static_assert(sizeof(struct td_pack_push) <= 128 && TD_IMAGES * sizeof(struct td_image_push) <= 128,
               "every device takes 128 bytes of push constants");

static void pipeline_free(td_vk *vk, td_vk_pipeline *p)
{
    if (p->pipeline)
        vk->fn.DestroyPipeline(vk->device, p->pipeline, NULL);
    if (p->layout)
        vk->fn.DestroyPipelineLayout(vk->device, p->layout, NULL);
    if (p->set_layout)
        vk->fn.DestroyDescriptorSetLayout(vk->device, p->set_layout, NULL);
    *p = (td_vk_pipeline){0};
}

void td_vk_pipelines_free(td_vk *vk)
{
    for (int i = 0; i < TD_VK_PROGRAM_COUNT; i++)
        pipeline_free(vk, &vk->pipelines[i]);
}

static tandem_status pipeline_make(td_vk *vk, td_vk_program program, td_vk_pipeline *p, char *why, size_t why_bytes)
{
    VkDescriptorSetLayoutBinding bindings[2] = {
        {.binding = 0,
         .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
         .descriptorCount = programs[program].buffers,
         .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT},
        {.binding = 1,
         .descriptorType = programs[program].image_type,
         .descriptorCount = programs[program].images,
         .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT}};
    VkDescriptorSetLayoutCreateInfo set_info = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                                .flags = VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR,
                                                .bindingCount = 2,
                                                .pBindings = bindings};
    VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = programs[program].push_bytes};
    VkPipelineLayoutCreateInfo layout_info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                              .setLayoutCount = 1,
                                              .pSetLayouts = &p->set_layout,
                                              .pushConstantRangeCount = 1,
                                              .pPushConstantRanges = &range};
    VkShaderModuleCreateInfo module_info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                            .codeSize = programs[program].bytes,
                                            .pCode = programs[program].words};
    VkComputePipelineCreateInfo info = {.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
                                        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                                                  .pName = "main"}};
    const char *call = "vkCreateDescriptorSetLayout";
    VkShaderModule module = VK_NULL_HANDLE;
    tandem_status status = TANDEM_OK;
    VkResult result;

    result = vk->fn.CreateDescriptorSetLayout(vk->device, &set_info, NULL, &p->set_layout);
    if (result != VK_SUCCESS) {
        p->set_layout = VK_NULL_HANDLE;
        goto fail;
    }
    call = "vkCreatePipelineLayout";
    result = vk->fn.CreatePipelineLayout(vk->device, &layout_info, NULL, &p->layout);
    if (result != VK_SUCCESS) {
        p->layout = VK_NULL_HANDLE;
        goto fail;
    }
    call = "vkCreateShaderModule";
    result = vk->fn.CreateShaderModule(vk->device, &module_info, NULL, &module);
    if (result != VK_SUCCESS) {
        module = VK_NULL_HANDLE;
        goto fail;
    }
    info.stage.module = module;
    info.layout = p->layout;
    call = "vkCreateComputePipelines";
    result = vk->fn.CreateComputePipelines(vk->device, VK_NULL_HANDLE, 1, &info, NULL, &p->pipeline);
    if (result != VK_SUCCESS) {
        p->pipeline = VK_NULL_HANDLE;
        goto fail;
    }
    td_vk_name(vk, VK_OBJECT_TYPE_PIPELINE, (uint64_t)p->pipeline, programs[program].name);
    vk->fn.DestroyShaderModule(vk->device, module, NULL);
    return TANDEM_OK;

fail:
    status = td_vk_result(result, call, why, why_bytes);
    if (module)
        vk->fn.DestroyShaderModule(vk->device, module, NULL);
    pipeline_free(vk, p);
    return status;
}

tandem_status td_vk_pipeline_get(td_vk *vk, td_vk_program program, td_vk_pipeline *out, char *why, size_t why_bytes)
{
    td_vk_pipeline *p = &vk->pipelines[program];
    tandem_status status = TANDEM_OK;

    pthread_mutex_lock(&vk->lock);
    if (!p->pipeline)
        status = pipeline_make(vk, program, p, why, why_bytes);
    *out = *p;
    pthread_mutex_unlock(&vk->lock);
    return status;
}
