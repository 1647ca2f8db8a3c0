/* Fibres, barriers, copies and products of the emulator: emu.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Blocks that run together take turns on one thread. Their static shared memory is the module's thread-local storage: the
 * block whose turn it is has it there, the others have copies.
 */
#include "tests/emu/emu.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <memory>
#include <vector>

#define _Alignas alignas
extern "C" {
#include "kernels/attention/cpu.h"
#include "kernels/target.h"
#include "tests/emu/launch.h"
}
#include "tests/emu/operands.h" /* which asks for what is above */
#include "tests/emu/statics.h"
#include "tests/emu/switch.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define FIBRES_OF_SANITIZER 1
constexpr size_t kStackBytes = 512 * 1024;
#else
#define FIBRES_OF_SANITIZER 0
constexpr size_t kStackBytes = 128 * 1024;
#endif

namespace emu {

Index threadIdx, blockIdx, blockDim, gridDim;

namespace {

constexpr size_t kGuardPage = 65536; /* below a stack; a multiple of any page */
constexpr size_t kLastFrames = 20 * 1024; /* that a thread ends in, and what is above them */
/* By how much stacks begin apart, modulo a page: all at one place they would share a few lines of the caches. Odd, in lines. */
constexpr size_t kStackStep = 13 * 64, kStackSteps = 4096;
constexpr uint32_t kPoison = 0x7fc5a5a5; /* NaN; as an integer, a large one */
constexpr int kGuardBytes = 256, kGuard = 0xee;
constexpr uint32_t kStaticWindow = 236 * 1024, kStaticBytes = 4096, kSharedEnd = 256 * 1024;

struct Copy {
    uint32_t to;
    const void *from;
    uint32_t bytes; /* of 16; then zeros */
    uint64_t group;
};

enum class State { ready, polling, blocked, ended };

struct Block;

struct Fibre {
    Block *block;
    unsigned thread;
    State state = State::ready;
    const char *waits = ""; /* for what */
    uint64_t detail = 0;
    Votes votes = {};
    std::vector<Copy> copies;
    uint64_t copy_group = 0, cluster_phase = 0;
    char *stack = nullptr;
    void *context = nullptr;
    void *fake_stack = nullptr;
};

struct Accumulator {
    void *c[32];
    int count; /* elements a lane */
    unsigned under_way = 0;
    std::vector<uint32_t> values; /* [lane][count] */
};

struct Started {
    Type type;
    int n;
    bool b_by_k, done = false;
    uint64_t a, b, group;
    const uint32_t *a_registers[32];
    std::shared_ptr<Accumulator> into;
};

struct Warp {
    const char *what = nullptr;
    unsigned come = 0;
    void *mine[32];
    std::vector<Started> started;
    std::vector<std::shared_ptr<Accumulator>> accumulators;
    uint64_t group = 0;
    bool fenced = false;
};

struct Barrier {
    unsigned threads = 0, come = 0;
    bool any = false, all = true;
    std::vector<Fibre *> waiting;
};

/* What a thread has asked to arrive at a barrier behind its copies. */
struct Arrival {
    uint32_t barrier;
    std::vector<Copy> copies;
};

struct Block {
    std::vector<Arrival> arrivals;
    unsigned index, rank, alive;
    std::vector<Fibre> fibres;
    std::vector<Warp> warps;
    Barrier barriers[16];
    std::vector<Fibre *> ready, polling;
    char *dynamic;
    uint32_t dynamic_bytes;
    std::vector<char> statics;             /* while it is not its turn; none before its first, unless another block asks;
                                              kUnwritten where the run has written nothing */
    std::vector<const char *> static_places; /* what has been given shared addresses, kStaticBytes each */
};

struct Cluster {
    unsigned come = 0;
    uint64_t phase = 0;
};

struct Run {
    const emu_launch *launch;
    std::vector<std::unique_ptr<Block>> blocks;
    Cluster cluster;
    Block *now = nullptr;
    Fibre *fibre = nullptr;
    uint64_t random;
    Statics statics;
    void *context = nullptr, *fake_stack = nullptr;
    const void *stack = nullptr;
    size_t stack_bytes = 0;
    uint64_t progress = 0; /* counts what others may wait for */
    uint32_t steps = 0; /* of threads of this block, with this one's, until the scheduler looks at all of them */
    unsigned minutes = 0; /* that have passed */
    bool failed = false;
};

Run *run;
const char *const kClock = "globaltimer";
uint64_t clock_ns = 1000; /* goes on from run to run */
std::vector<std::vector<char>> spare_statics; /* with nothing written */
std::vector<char *> spare_stacks;

uint32_t below(uint32_t n)
{
    return uint32_t((random64() >> 32) * n >> 32);
}

void note(const char *format, va_list list)
{
    if (!run->failed && run->launch->why_bytes)
        vsnprintf(run->launch->why, run->launch->why_bytes, format, list);
    run->failed = true;
}

__attribute__((format(printf, 1, 2))) void note_failure(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    note(format, list);
    va_end(list);
}

Fibre *take_one(std::vector<Fibre *> &from)
{
    const uint32_t i = below(uint32_t(from.size()));
    Fibre *fibre = from[i];
    from[i] = from.back();
    from.pop_back();
    return fibre;
}

/* Whose step is next, of a block of which somebody can go on. */
Fibre *take_next(Block *block)
{
    const bool polls = !block->polling.empty() && below(16) == 0;
    return take_one(polls ? block->polling : block->ready);
}

void begin_step(Fibre *fibre)
{
    run->fibre = fibre;
    threadIdx.x = fibre->thread;
    fibre->state = State::ready;
}

/* From a fibre to the next one of its block, or to the scheduler. */
void leave()
{
    Fibre *self = run->fibre, *next = nullptr;
    if (!run->failed && --run->steps && !self->block->ready.empty()) {
        next = take_next(self->block);
        begin_step(next);
        if (next == self)
            return;
    }
#if FIBRES_OF_SANITIZER
    __sanitizer_start_switch_fiber(self->state == State::ended ? nullptr : &self->fake_stack, next ? next->stack : run->stack,
                                   next ? kStackBytes : run->stack_bytes);
#endif
    emu_switch(&self->context, next ? next->context : run->context);
#if FIBRES_OF_SANITIZER
    __sanitizer_finish_switch_fiber(self->fake_stack, nullptr, nullptr);
#endif
}

void make_ready(Fibre *fibre)
{
    fibre->state = State::ready;
    fibre->block->ready.push_back(fibre);
}

void block_on(const char *what, uint64_t detail)
{
    run->fibre->state = State::blocked;
    run->fibre->waits = what;
    run->fibre->detail = detail;
    leave();
}

void complete(Barrier &barrier)
{
    const Votes votes = {barrier.any, barrier.all};
    for (Fibre *fibre : barrier.waiting) {
        fibre->votes = votes;
        make_ready(fibre);
    }
    barrier = Barrier();
}

void complete_cluster_phase()
{
    unsigned alive = 0;
    for (const auto &block : run->blocks)
        alive += block->alive;
    if (!alive || run->cluster.come < alive)
        return;
    run->cluster.come = 0;
    run->cluster.phase++;
    for (const auto &block : run->blocks)
        for (Fibre &fibre : block->fibres)
            if (fibre.state == State::blocked && !strcmp(fibre.waits, "barrier.cluster.wait") &&
                fibre.cluster_phase <= run->cluster.phase)
                make_ready(&fibre);
}

void land(const Copy &copy)
{
    void *to = shared_pointer(copy.to, 16, 16, "cp.async");
    memset(to, 0, 16);
    if (copy.bytes)
        memcpy(to, copy.from, copy.bytes);
}

void end_thread()
{
    Fibre *self = run->fibre;
    Block *block = self->block;
    const Warp &warp = block->warps[self->thread / 32];
    for (const Copy &copy : self->copies)
        land(copy);
    self->copies.clear();
    if (!warp.started.empty())
        fail("it ends while a wgmma of its warp is under way");
    self->state = State::ended;
    block->alive--;
    Barrier &all = block->barriers[0];
    if (all.threads == 0 && all.come && all.come == block->alive)
        complete(all);
    complete_cluster_phase();
    leave();
    abort();
}

/* The parameter block is passed by value: a copy on the stack (or of which the address is passed) that is larger than
 * the kernel's own, which therefore lies where the kernel looks for it. */
struct Params {
    uint64_t words[80];
};

void begin_thread()
{
#if FIBRES_OF_SANITIZER
    const bool first = !run->stack; /* who comes from the scheduler, whose stack that is */
    __sanitizer_finish_switch_fiber(nullptr, first ? &run->stack : nullptr, first ? &run->stack_bytes : nullptr);
#endif
    reinterpret_cast<void (*)(Params)>(run->launch->kernel)(*static_cast<const Params *>(run->launch->params));
    end_thread();
}

char *statics_of(Block *block)
{
    if (block->statics.empty()) {
        if (!spare_statics.empty() && spare_statics.back().size() == run->statics.bytes) {
            block->statics = std::move(spare_statics.back());
            spare_statics.pop_back();
        } else {
            block->statics.assign(run->statics.bytes, char(kUnwritten));
        }
    }
    return block->statics.data();
}

void take_turn(Block *block)
{
    if (run->now == block)
        return;
    for (const Written::Part &part : written.parts) {
        char *here = run->statics.at + part.offset;
        if (run->now)
            memcpy(statics_of(run->now) + part.offset, here, part.bytes);
        if (block->statics.empty())
            memset(here, kUnwritten, part.bytes);
        else
            memcpy(here, block->statics.data() + part.offset, part.bytes);
    }
    run->now = block;
    blockIdx.x = block->index;
}

/* Until the scheduler's next turn, which is after so many steps of threads of the block, or as none of them can go on. */
void resume(Fibre *fibre, uint32_t steps)
{
    take_turn(fibre->block);
    run->steps = steps;
    begin_step(fibre);
#if FIBRES_OF_SANITIZER
    __sanitizer_start_switch_fiber(&run->fake_stack, fibre->stack, kStackBytes);
#endif
    emu_switch(&run->context, fibre->context);
#if FIBRES_OF_SANITIZER
    __sanitizer_finish_switch_fiber(run->fake_stack, nullptr, nullptr);
#endif
}

/* Whether a minute passes: nobody can go on, but somebody reads the clock. */
bool time_passes()
{
    bool reads = false;

    for (const auto &block : run->blocks)
        for (const Fibre *fibre : block->polling)
            reads = reads || !strcmp(fibre->waits, kClock);
    if (!reads || run->minutes == 1000)
        return false;
    run->minutes++;
    clock_ns += 60000000000u;
    return true;
}

/* Every thread that polls, until one of them has done anything else. */
bool go_round()
{
    const uint64_t before = run->progress;

    for (const auto &block : run->blocks) {
        std::vector<Fibre *> left;
        left.swap(block->polling);
        while (!left.empty()) {
            Fibre *fibre = take_one(left);
            resume(fibre, 1);
            if (!run->failed && fibre->state == State::polling && run->progress == before)
                continue;
            block->polling.insert(block->polling.end(), left.begin(), left.end());
            return true;
        }
    }
    return false;
}

void tell_deadlock()
{
    char text[1500] = "";
    size_t at = 0;
    for (const auto &block : run->blocks)
        for (size_t w = 0; w < block->warps.size(); w++) {
            const Fibre *first = nullptr;
            unsigned alike = 0, others = 0;
            for (size_t t = 32 * w; t < 32 * w + 32 && t < block->fibres.size(); t++) {
                const Fibre *fibre = &block->fibres[t];
                if (fibre->state == State::ended)
                    continue;
                first = first ? first : fibre;
                if (!strcmp(fibre->waits, first->waits) && fibre->detail == first->detail)
                    alike++;
                else
                    others++;
            }
            if (first && at < sizeof text)
                at += size_t(snprintf(text + at, sizeof text - at, "; block %u warp %zu: %u threads at %s %llu",
                                      block->index, w, alike, first->waits, (unsigned long long)first->detail));
            if (others && at < sizeof text)
                at += size_t(snprintf(text + at, sizeof text - at, ", %u elsewhere", others));
        }
    note_failure("deadlock%s", text);
}

void schedule()
{
    for (;;) {
        std::vector<Block *> can;
        unsigned alive = 0;
        for (const auto &block : run->blocks) {
            alive += block->alive;
            if (!block->ready.empty())
                can.push_back(block.get());
        }
        if (!alive)
            return;
        if (can.empty()) {
            if (!go_round() && !time_passes()) {
                tell_deadlock();
                return;
            }
            if (run->failed)
                return;
            continue;
        }
        Block *block = can[below(uint32_t(can.size()))];
        const uint32_t steps = can.size() > 1 || !block->polling.empty() ? 1 + below(400) : ~0u;
        resume(take_next(block), steps);
        if (run->failed)
            return;
    }
}

thread_local volatile char anchor; /* so that there is such storage, and that it has been made */

std::unique_ptr<Block> new_block(unsigned index, unsigned rank)
{
    const emu_launch *launch = run->launch;
    auto block = std::make_unique<Block>();
    block->index = index;
    block->rank = rank;
    block->alive = launch->block;
    block->dynamic_bytes = launch->shared_bytes;
    const size_t guard = FIBRES_OF_SANITIZER ? 0 : kGuardBytes;
    void *dynamic = nullptr;
    if (posix_memalign(&dynamic, 1024, block->dynamic_bytes + guard + 1))
        abort();
    block->dynamic = static_cast<char *>(dynamic);
    memset(block->dynamic, kUnwritten, block->dynamic_bytes);
    memset(block->dynamic + block->dynamic_bytes, kGuard, guard);
    block->fibres.resize(launch->block);
    block->warps.resize((launch->block + 31) / 32);
    for (unsigned t = 0; t < launch->block; t++) {
        Fibre *fibre = &block->fibres[t];
        fibre->block = block.get();
        fibre->thread = t;
        if (spare_stacks.empty()) {
            void *mapped = mmap(nullptr, kGuardPage + kStackBytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (mapped == MAP_FAILED || mprotect(mapped, kGuardPage, PROT_NONE))
                abort();
            spare_stacks.push_back(static_cast<char *>(mapped) + kGuardPage);
        }
        fibre->stack = spare_stacks.back();
        spare_stacks.pop_back();
        const size_t apart = reinterpret_cast<uintptr_t>(fibre->stack) / kGuardPage * kStackStep % kStackSteps;
        fibre->context = new_context(fibre->stack, kStackBytes - apart, begin_thread);
        make_ready(fibre);
    }
    return block;
}

void end_block(Block *block)
{
    if (!run->failed) {
        for (int id = 0; id < 16; id++)
            if (block->barriers[id].come)
                note_failure("block %u ends with %u of %u threads at barrier %d", block->index,
                             block->barriers[id].come, block->barriers[id].threads, id);
        for (int i = 0; !FIBRES_OF_SANITIZER && i < kGuardBytes; i++)
            if (block->dynamic[block->dynamic_bytes + size_t(i)] != char(kGuard))
                note_failure("block %u wrote to byte %u of its shared memory, of which it has %u", block->index,
                             block->dynamic_bytes + unsigned(i), block->dynamic_bytes);
    }
    free(block->dynamic);
    if (!block->statics.empty()) {
        for (const Written::Part &part : written.parts)
            memset(block->statics.data() + part.offset, kUnwritten, part.bytes);
        spare_statics.push_back(std::move(block->statics));
    }
    for (Fibre &fibre : block->fibres) {
#if FIBRES_OF_SANITIZER
        const size_t used = run->failed ? kStackBytes : kLastFrames; /* frames that were not returned from */
        __asan_unpoison_memory_region(fibre.stack + kStackBytes - used, used);
#endif
        spare_stacks.push_back(fibre.stack);
    }
}

} // namespace

uint64_t random64()
{
    uint64_t z = run->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void fail(const char *format, ...)
{
    char text[300];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    note_failure("block %u thread %u: %s", blockIdx.x, threadIdx.x, text);
    leave(); /* nobody comes back */
    abort();
}

void maybe_yield()
{
    run->progress++;
    if (below(4))
        return;
    make_ready(run->fibre);
    leave();
}

void poll(const char *what, uint64_t detail)
{
    Fibre *self = run->fibre;
    self->state = State::polling;
    self->waits = what;
    self->detail = detail;
    self->block->polling.push_back(self);
    leave();
}

uint64_t nanoseconds()
{
    poll(kClock, clock_ns);
    return clock_ns++;
}

void collective(const char *what, void *mine, void (*all)(void *const *lanes))
{
    Fibre *self = run->fibre;
    Block *block = self->block;
    const unsigned first = self->thread / 32 * 32;
    Warp &warp = block->warps[self->thread / 32];
    if (block->fibres.size() < first + 32)
        fail("%s by a warp of %zu threads", what, block->fibres.size() - first);
    if (warp.come && warp.what != what && strcmp(warp.what, what))
        fail("%s, but other lanes of its warp are at %s", what, warp.what);
    warp.what = what;
    warp.mine[self->thread % 32] = mine;
    if (++warp.come < 32) {
        block_on(what, 0);
        return;
    }
    all(warp.mine);
    warp.come = 0;
    for (unsigned t = first; t < first + 32; t++)
        if (t != self->thread)
            make_ready(&block->fibres[t]);
    maybe_yield();
}

uint32_t vote(bool x)
{
    struct Lane {
        bool x;
        uint32_t all;
    } mine = {x, 0};
    collective("vote", &mine, [](void *const *lanes) {
        uint32_t bits = 0;
        for (int i = 0; i < 32; i++)
            bits |= uint32_t(static_cast<Lane *>(lanes[i])->x) << i;
        for (int i = 0; i < 32; i++)
            static_cast<Lane *>(lanes[i])->all = bits;
    });
    return mine.all;
}

Votes barrier(unsigned id, unsigned threads, bool waits, bool x)
{
    Fibre *self = run->fibre;
    if (id >= 16)
        fail("barrier %u: there are 16", id);
    Barrier &it = self->block->barriers[id];
    if (it.come && it.threads != threads)
        fail("barrier %u is for %u threads, and %u for others", id, threads, it.threads);
    it.threads = threads;
    it.any = it.any || x;
    it.all = it.all && x;
    if (++it.come == (threads ? threads : self->block->alive)) {
        const Votes votes = {it.any, it.all};
        complete(it);
        maybe_yield();
        return votes;
    }
    if (waits) {
        it.waiting.push_back(self);
        block_on("barrier", id);
    } else {
        maybe_yield();
    }
    return self->votes;
}

void *dynamic_shared()
{
    return run->now->dynamic;
}

uint32_t shared_address(const void *p)
{
    const char *at = static_cast<const char *>(p);
    Block *block = run->now;
    if (at >= block->dynamic && at <= block->dynamic + block->dynamic_bytes)
        return uint32_t(at - block->dynamic);
    if (at < run->statics.at || at >= run->statics.at + run->statics.bytes)
        fail("%p is not in shared memory", p);
    for (size_t i = 0; i < block->static_places.size(); i++)
        if (at >= block->static_places[i] && at < block->static_places[i] + kStaticBytes)
            return kStaticWindow + uint32_t(i * kStaticBytes + size_t(at - block->static_places[i]));
    if ((block->static_places.size() + 1) * kStaticBytes > kSharedEnd - kStaticWindow)
        fail("too many static variables of shared memory have an address");
    block->static_places.push_back(at - reinterpret_cast<uintptr_t>(at) % 128);
    return shared_address(p);
}

void *shared_pointer(uint32_t address, uint32_t bytes, uint32_t alignment, const char *what)
{
    Block *block = run->now;
    if (address % alignment)
        fail("%s at shared address %u, which is no multiple of %u", what, address, alignment);
    if (address + uint64_t(bytes) <= block->dynamic_bytes)
        return block->dynamic + address;
    const uint32_t place = (address - kStaticWindow) / kStaticBytes;
    if (address < kStaticWindow || place >= block->static_places.size())
        fail("%s of bytes %u to %u of shared memory, of which the launch has %u", what, address, address + bytes - 1,
             block->dynamic_bytes);
    return const_cast<char *>(block->static_places[place]) + (address - kStaticWindow) % kStaticBytes;
}

void copy_start(uint32_t to, const void *from, uint32_t bytes)
{
    Fibre *self = run->fibre;
    void *place = shared_pointer(to, 16, 16, "cp.async");
    const Copy copy = {to, from, bytes, self->copy_group};
    if (bytes > 16 || (bytes && reinterpret_cast<uintptr_t>(from) % 16))
        fail("cp.async of %u bytes from %p, which is not 16-byte aligned", unsigned(bytes), from);
    memset(place, kUnwritten, 16);
    if (below(8) == 0)
        land(copy); /* at once */
    else
        self->copies.push_back(copy);
}

void copy_commit()
{
    run->fibre->copy_group++;
}

void copy_wait(unsigned pending)
{
    Fibre *self = run->fibre;
    maybe_yield();
    size_t kept = 0;
    for (const Copy &copy : self->copies)
        if (copy.group + pending < self->copy_group)
            land(copy);
        else
            self->copies[kept++] = copy;
    self->copies.resize(kept);
}

/* --- mbarriers: 8 bytes of shared memory --- */

namespace {

struct Mbarrier {
    uint16_t magic, expected, pending, phase;
};
constexpr uint16_t kMagic = 0x6d62;

Mbarrier *mbarrier_of(uint32_t at)
{
    Mbarrier *it = static_cast<Mbarrier *>(shared_pointer(at, 8, 8, "mbarrier"));
    if (it->magic != kMagic)
        fail("the mbarrier at shared address %u has not been initialised, or was overwritten", at);
    return it;
}

} // namespace

void mbarrier_init(uint32_t at, uint32_t arrivals)
{
    *static_cast<Mbarrier *>(shared_pointer(at, 8, 8, "mbarrier.init")) = {kMagic, uint16_t(arrivals),
                                                                          uint16_t(arrivals), 0};
}

/* Bytes that are to come are pending like arrivals. */
void mbarrier_expect(uint32_t at, uint32_t bytes)
{
    Mbarrier *it = mbarrier_of(at);
    if (it->pending + bytes > UINT16_MAX)
        fail("an mbarrier for %u bytes; here 65535 is the most", bytes);
    it->pending = uint16_t(it->pending + bytes);
    mbarrier_arrive(at);
}

void mbarrier_arrive(uint32_t at)
{
    Mbarrier *it = mbarrier_of(at);
    if (--it->pending == 0) {
        it->pending = it->expected;
        it->phase++;
    }
    maybe_yield();
}

void copy_arrive(uint32_t barrier)
{
    Fibre *self = run->fibre;
    mbarrier_of(barrier);
    self->block->arrivals.push_back({barrier, self->copies});
    self->copies.clear();
    maybe_yield();
}

/* Copies whose threads do not wait for them come when anybody looks at a barrier, in any order. */
void land_some()
{
    std::vector<Arrival> &all = run->fibre->block->arrivals;
    for (uint32_t n = 1 + below(uint32_t(all.size())); n > 0; n--) {
        const uint32_t i = below(uint32_t(all.size()));
        const Arrival it = all[i];
        all[i] = all.back();
        all.pop_back();
        for (const Copy &copy : it.copies)
            land(copy);
        Mbarrier *at = mbarrier_of(it.barrier);
        if (--at->pending == 0) {
            at->pending = at->expected;
            at->phase++;
        }
        run->progress++;
    }
}

bool mbarrier_look(uint32_t at, uint32_t parity)
{
    if (!run->fibre->block->arrivals.empty() && below(3) == 0)
        land_some();
    return (mbarrier_of(at)->phase & 1) != parity;
}

bool mbarrier_test(uint32_t at, uint32_t parity)
{
    const bool done = mbarrier_look(at, parity);
    if (!done && !run->fibre->block->arrivals.empty())
        land_some();
    if (done)
        maybe_yield();
    else
        poll(parity ? "mbarrier parity 1 at" : "mbarrier parity 0 at", at);
    return done;
}

/* --- wgmma --- */

namespace {

void execute(Started &it, unsigned warp)
{
    const bool wide = it.type == Type::f16 || it.type == Type::bf16;
    alignas(16) uint8_t a[16][32];
    for (unsigned row = 0; row < 16; row++)
        for (unsigned byte = 0; byte < 32; byte += 16) {
            if (!it.a_registers[0]) {
                memcpy(&a[row][byte], operand_byte(it.a, warp % 4 * 16 + row, byte, false, 16), 16);
                continue;
            }
            for (unsigned q = 0; q < 4; q++)
                memcpy(&a[row][byte + 4 * q], &it.a_registers[row % 8 * 4 + q][row / 8 + byte / 16 * 2], 4);
        }
    const bool is_fp8 = it.type == Type::e4m3 || it.type == Type::e4m3_into_f16;
    const uint32_t accumulator = it.type == Type::e4m3 ? TD_ACCUMULATOR_WGMMA : TD_ACCUMULATOR_WGMMA_F16;
    struct Apart {
        td_twin_operand x[32];
        bool finite;
    };
    static Apart rows[16];
    for (unsigned row = 0; is_fp8 && row < 16; row++)
        rows[row].finite = td_twin_apart_e4m3(accumulator, a[row], rows[row].x);
    static Numbers numbers[16];
    for (unsigned row = 0; wide && row < 16; row++)
        for (unsigned k = 0; k < 16; k++) {
            uint16_t bits;
            memcpy(&bits, &a[row][2 * k], 2);
            numbers[row].of[k] = number(it.type, bits);
        }
    for (int column = 0; column < it.n; column++) {
        alignas(16) uint8_t b[32];
        if (it.b_by_k)
            for (unsigned k = 0; k < 16; k++)
                memcpy(b + 2 * k, operand_byte(it.b, k, 2 * unsigned(column), true, 2), 2);
        else
            for (unsigned byte = 0; byte < 32; byte += 16)
                memcpy(b + byte, operand_byte(it.b, unsigned(column), byte, false, 16), 16);
        Apart apart_b;
        if (is_fp8)
            apart_b.finite = td_twin_apart_e4m3(accumulator, b, apart_b.x);
        const auto fp8_sum = [&](int row, float c) {
            return rows[row].finite && apart_b.finite ? td_twin_sum_e4m3(accumulator, rows[row].x, apart_b.x, c) : NAN;
        };
        Numbers of_b;
        for (unsigned k = 0; wide && k < 16; k++) {
            uint16_t bits;
            memcpy(&bits, b + 2 * k, 2);
            of_b.of[k] = number(it.type, bits);
        }
        for (int row = 0; row < 16; row++) {
            const int lane = row % 8 * 4 + column % 8 / 2, element = column / 8 * 4 + row / 8 * 2 + column % 2;
            uint32_t none = 0, *bits = it.type == Type::e4m3_into_f16
                                           ? &none
                                           : &it.into->values[size_t(lane * it.into->count + element)];
            if (it.type == Type::s8) {
                int32_t sum = int32_t(*bits);
                for (int k = 0; k < 32; k++)
                    sum += int8_t(a[row][k]) * int8_t(b[k]);
                *bits = uint32_t(sum);
            } else if (it.type == Type::e4m3_into_f16) {
                uint32_t &pair = it.into->values[size_t(lane * it.into->count + column / 8 * 2 + row / 8)];
                const int shift = column % 2 * 16;
                const float sum = fp8_sum(row, td_from_f16(uint16_t(pair >> shift)));
                pair = (pair & ~(0xffffu << shift)) | uint32_t(td_to_f16(sum)) << shift;
            } else if (it.type == Type::e4m3) {
                *bits = td_bits(fp8_sum(row, td_float(*bits)));
            } else {
                const double sum = numbers[row].times(of_b);
                *bits = td_bits(float(double(td_float(*bits)) + sum));
            }
        }
    }
    it.done = true;
}

void execute_until(Warp &warp, unsigned index, uint64_t group)
{
    for (Started &it : warp.started)
        if (!it.done && it.group < group)
            execute(it, index);
}

} // namespace

void wgmma_fence()
{
    collective("wgmma.fence", nullptr, [](void *const *) { run->now->warps[threadIdx.x / 32].fenced = true; });
}

void wgmma_start(const Product &product)
{
    Product mine = product;
    collective("wgmma", &mine, [](void *const *lanes) {
        Warp &warp = run->now->warps[threadIdx.x / 32];
        const Product &first = *static_cast<const Product *>(lanes[0]);
        Started it = {};
        if (!warp.fenced)
            fail("wgmma without a wgmma.fence since registers could change");
        it.type = first.type;
        it.n = first.n;
        it.b_by_k = first.b_by_k;
        it.a = first.a;
        it.b = first.b;
        it.group = warp.group;
        for (int i = 0; i < 32; i++) {
            const Product &lane = *static_cast<const Product *>(lanes[i]);
            it.a_registers[i] = lane.a_registers;
            if (lane.a != first.a || lane.b != first.b || lane.n != first.n)
                fail("wgmma with other operands in lane %d than in lane 0", i);
        }
        for (const auto &accumulator : warp.accumulators)
            if (accumulator->c[0] == first.c)
                it.into = accumulator;
        if (!it.into) {
            it.into = std::make_shared<Accumulator>();
            it.into->count = first.n / (first.type == Type::e4m3_into_f16 ? 4 : 2);
            it.into->values.resize(size_t(32 * it.into->count));
            for (int i = 0; i < 32; i++) {
                it.into->c[i] = static_cast<const Product *>(lanes[i])->c;
                memcpy(&it.into->values[size_t(i * it.into->count)], it.into->c[i], size_t(4 * it.into->count));
                for (int e = 0; e < it.into->count; e++)
                    static_cast<uint32_t *>(it.into->c[i])[e] = kPoison;
            }
            warp.accumulators.push_back(it.into);
        }
        if (!first.adds) {
            /* Those before it in the same registers are done by then: they would be for nothing. */
            for (const Started &other : warp.started)
                if (other.into == it.into)
                    fail("wgmma overwrites registers of another that is under way");
            memset(it.into->values.data(), 0, it.into->values.size() * 4);
        }
        it.into->under_way++;
        warp.started.push_back(it);
    });
}

void wgmma_commit()
{
    collective("wgmma.commit_group", nullptr, [](void *const *) {
        Warp &warp = run->now->warps[threadIdx.x / 32];
        warp.group++;
        if (below(4) == 0)
            execute_until(warp, threadIdx.x / 32, warp.group); /* at once */
    });
}

void wgmma_wait(unsigned pending)
{
    unsigned mine = pending;
    maybe_yield();
    collective("wgmma.wait_group", &mine, [](void *const *lanes) {
        Warp &warp = run->now->warps[threadIdx.x / 32];
        const unsigned left = *static_cast<unsigned *>(lanes[0]);
        const uint64_t until = warp.group > left ? warp.group - left : 0;
        execute_until(warp, threadIdx.x / 32, until);
        size_t kept = 0;
        for (Started &it : warp.started)
            if (it.group >= until)
                warp.started[kept++] = it;
            else
                it.into->under_way--;
        warp.started.resize(kept);
        kept = 0;
        for (const auto &accumulator : warp.accumulators) {
            if (accumulator->under_way) {
                warp.accumulators[kept++] = accumulator;
                continue;
            }
            for (int i = 0; i < 32; i++)
                memcpy(accumulator->c[i], &accumulator->values[size_t(i * accumulator->count)],
                       size_t(4 * accumulator->count));
        }
        warp.accumulators.resize(kept);
        warp.fenced = false;
    });
}

/* --- Clusters --- */

uint32_t cluster_rank()
{
    return run->now->rank;
}

uint32_t cluster_size()
{
    return run->launch->cluster > 1 ? run->launch->cluster : 1;
}

void cluster_arrive()
{
    run->fibre->cluster_phase = run->cluster.phase + 1;
    run->cluster.come++;
    complete_cluster_phase();
    maybe_yield();
}

void cluster_wait()
{
    if (run->cluster.phase < run->fibre->cluster_phase)
        block_on("barrier.cluster.wait", run->fibre->cluster_phase);
}

const void *cluster_pointer(const void *mine, uint32_t rank, uint32_t bytes)
{
    const char *at = static_cast<const char *>(mine);
    const char *dynamic = run->now->dynamic;
    const bool is_dynamic = at >= dynamic && at + bytes <= dynamic + run->now->dynamic_bytes;
    if (!is_dynamic && (at < run->statics.at || at + bytes > run->statics.at + run->statics.bytes))
        fail("%p is not in shared memory", mine);
    if (rank >= cluster_size())
        fail("block %u of a cluster of %u", rank, cluster_size());
    Block *other = run->blocks[rank].get();
    if (!other->alive)
        fail("block %u of the cluster has ended, and its shared memory with it", rank);
    if (is_dynamic)
        return other->dynamic + (at - dynamic);
    if (other == run->now)
        return mine;
    written.touch(size_t(at - run->statics.at), bytes);
    return statics_of(other) + (at - run->statics.at);
}

void cluster_store(void *mine, uint32_t rank, const void *from, uint32_t bytes, const void *barrier)
{
    Mbarrier it;
    void *there = const_cast<void *>(cluster_pointer(barrier, rank, sizeof it));
    memcpy(const_cast<void *>(cluster_pointer(mine, rank, bytes)), from, bytes);
    memcpy(&it, there, sizeof it);
    if (it.magic != kMagic)
        fail("block %u of the cluster has not initialised its mbarrier", rank);
    if (it.pending < bytes)
        fail("%u bytes for an mbarrier of block %u that waits for %u", bytes, rank, it.pending);
    it.pending = uint16_t(it.pending - bytes);
    if (!it.pending) {
        it.pending = it.expected;
        it.phase++;
    }
    memcpy(there, &it, sizeof it);
    maybe_yield();
}

} // namespace emu

extern "C" __attribute__((visibility("default"))) int emu_run(const emu_launch *launch)
{
    using namespace emu;
    static Run state;
    state = Run();
    run = &state;
    run->launch = launch;
    run->random = launch->seed;
    (void)anchor;
    dl_iterate_phdr(find_statics, &run->statics);
    written.begin(run->statics);
    gridDim = {launch->grid, 1, 1};
    blockDim = {launch->block, 1, 1};
    const uint32_t together = launch->cluster > 1 ? launch->cluster : launch->together ? launch->together : 1;
    for (uint32_t first = 0; first < launch->grid && !run->failed; first += together) {
        const uint32_t end = first + together < launch->grid ? first + together : launch->grid;
        run->cluster = Cluster();
        if (launch->before)
            launch->before(launch->user, first);
        for (uint32_t i = first; i < end; i++)
            run->blocks.push_back(new_block(i, i - first));
        schedule();
        for (const auto &block : run->blocks)
            end_block(block.get());
        run->blocks.clear();
        run->now = nullptr;
    }
    const bool failed = run->failed;
    written.end();
    state = Run();
    return failed ? -1 : 0;
}
