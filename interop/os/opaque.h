/* As what two drivers of one GPU give each other memory and semaphores: as descriptors whose content only drivers know.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What Vulkan and CUDA call them differs with the system, and so does who has to close one. (Linux: OPAQUE_FD. Windows:
 * OPAQUE_WIN32, handles of the NT kernel.)
 */
#ifndef TANDEM_OS_OPAQUE_H
#define TANDEM_OS_OPAQUE_H

#include <stdbool.h>
#include <stdint.h>

/* A descriptor as these APIs take and give it. */
typedef union td_opaque_handle {
    int fd;
    void *win32;
} td_opaque_handle;

/* -1 for what is none: a handle of more than 32 bits, too. And the other way, for a descriptor that is one. */
int td_opaque_fd(td_opaque_handle handle);
td_opaque_handle td_opaque_of(int fd);

/* The extensions of Vulkan that export them. */
extern const char td_opaque_memory_extension[], td_opaque_semaphore_extension[];

/* The numbers are those of the APIs' enums. */
typedef struct td_opaque_kind {
    const char *name;                                  /* as these have it */
    const char *get_memory, *get_semaphore;            /* Vulkan's functions, */
    int32_t get_memory_struct, get_semaphore_struct;   /* the VkStructureType of what they take, */
    uint32_t memory_type, semaphore_type;              /* and VkExternalMemoryHandleTypeFlagBits, VkExternalSemaphore.. */
    int32_t cuda_memory_type, cuda_timeline_type;      /* CUexternalMemoryHandleType, CUexternalSemaphoreHandleType */
    bool is_win32;      /* the member of td_opaque_handle that counts */
    bool import_takes;  /* what CUDA has imported it closes itself */
    bool exported_once; /* of an object Vulkan makes one handle, ever; else it makes as many as it is asked for */
} td_opaque_kind;
extern const td_opaque_kind td_opaque;

#endif
