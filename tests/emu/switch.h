/* From one stack to another.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_EMU_SWITCH_H
#define TD_TESTS_EMU_SWITCH_H

#include <stddef.h>

/* Leaves a stack for another: what has to be kept is pushed on the first and popped from the second. */
#if defined(__x86_64__) && !defined(EMU_UCONTEXT)
extern "C" void emu_switch(void **save, void *to);
asm(R"(
    .text
    .hidden emu_switch
    .globl emu_switch
    .type emu_switch, @function
emu_switch:
    endbr64
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emu_switch, . - emu_switch
)");

static void *new_context(char *stack, size_t bytes, void (*begin)())
{
    void **top = reinterpret_cast<void **>(stack + bytes) - 1; /* so that `begin` finds the stack as after a call */
    *top = nullptr;
    *--top = reinterpret_cast<void *>(begin);
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    return top;
}
#else
#include <ucontext.h>

/* A context's memory is found by what stands for its stack pointer. */
static void emu_switch(void **save, void *to)
{
    ucontext_t here;
    *save = &here;
    swapcontext(&here, static_cast<ucontext_t *>(to));
}

static void *new_context(char *stack, size_t bytes, void (*begin)())
{
    ucontext_t *context = reinterpret_cast<ucontext_t *>(stack); /* the far end of it */
    getcontext(context);
    context->uc_stack.ss_sp = stack + sizeof *context;
    context->uc_stack.ss_size = bytes - sizeof *context;
    context->uc_link = nullptr;
    makecontext(context, begin, 0);
    return context;
}
#endif

#endif
