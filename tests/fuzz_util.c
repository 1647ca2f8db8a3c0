/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz_util.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_INPUTS = 1024, MAX_BYTES = 4096 };

typedef struct input {
    size_t size;
    uint8_t bytes[MAX_BYTES];
} input;

static uint64_t dice = 0x9e3779b97f4a7c15;

static uint64_t roll(uint64_t below)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return dice % below;
}

/* A place in the input, rather near its begin, where the numbers are. */
static size_t place(const input *in, size_t width)
{
    const size_t words = (in->size - 2) / width, near = 64 / width + 1;

    return 2 + width * roll(roll(2) && words > near ? near : words ? words : 1);
}

static void mutate(input *in, const input *other)
{
    static const char *const pieces[] = {"../", "/..", "..", "\xc2\x9f", "\xed\xa0\x80", "\x1b["};
    static const uint64_t edges[] = {0,          1,          2,          63,         64,         65,
                                     127,        255,        4096,       0x7fffffff, 0x80000000, 0xffffffff,
                                     1ull << 30, 1ull << 32, 1ull << 63, UINT64_MAX, INT64_MAX};
    const size_t width = (size_t)1 << roll(4);
    size_t at, n;

    switch (in->size > 10 ? roll(9) : 0) {
    case 0: /* longer */
        n = roll(32) + 1;
        for (size_t i = 0; i < n && in->size < MAX_BYTES; i++)
            in->bytes[in->size++] = (uint8_t)roll(256);
        break;
    case 1: /* shorter */
        in->size -= roll(in->size - 2);
        break;
    case 2: /* a bit */
        in->bytes[roll(in->size)] ^= (uint8_t)(1 << roll(8));
        break;
    case 3: /* a number from the edge */
        at = place(in, width);
        if (at + width <= in->size)
            memcpy(in->bytes + at, &edges[roll(sizeof edges / sizeof *edges)], width);
        break;
    case 4: /* a number near what it was */
        at = place(in, width);
        if (at + width <= in->size) {
            uint64_t value = 0;

            memcpy(&value, in->bytes + at, width);
            value += roll(17) - 8;
            memcpy(in->bytes + at, &value, width);
        }
        break;
    case 5: /* a piece of another */
        if (other->size > 2) {
            at = roll(other->size);
            n = roll((other->size < in->size ? other->size : in->size) - 1) + 1;
            if (at + n > other->size)
                n = other->size - at;
            if (at + n <= in->size)
                memcpy(in->bytes + at, other->bytes + at, n);
        }
        break;
    case 6: /* one byte over and over, perhaps to the end */
        at = 2 + roll(in->size - 2);
        n = roll(2) ? in->size - at : roll(in->size - at) + 1;
        memset(in->bytes + at, (int)(roll(2) ? 'x' : roll(256)), n);
        break;
    case 7: { /* what texts should not have */
        const char *piece = pieces[roll(sizeof pieces / sizeof *pieces)];

        at = roll(2) ? 18 : 2 + roll(in->size - 2);
        if (at + strlen(piece) <= in->size)
            memcpy(in->bytes + at, piece, strlen(piece));
        break;
    }
    default: /* how */
        in->bytes[0] = (uint8_t)roll(64);
    }
}

static uint32_t read_corpus(const char *folder, input *inputs)
{
    DIR *dir = opendir(folder);
    uint32_t count = 0;

    for (const struct dirent *e; dir && (e = readdir(dir)) && count < MAX_INPUTS;) {
        char path[4096];
        FILE *file;

        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        file = e->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (!file)
            continue;
        inputs[count].size = fread(inputs[count].bytes, 1, MAX_BYTES, file);
        fclose(file);
        count++;
    }
    if (dir)
        closedir(dir);
    return count;
}

bool fuzz_write(const char *folder, const char *name, const void *bytes, size_t count)
{
    char path[4096];
    FILE *file;
    bool ok;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "wb");
    ok = file && fwrite(bytes, 1, count, file) == count;
    return (!file || !fclose(file)) && ok;
}

int fuzz_main(int argc, char **argv, const char *name, uint64_t runs, bool (*make)(const char *folder))
{
    static input inputs[MAX_INPUTS], in;
    uint32_t count;

    if (argc == 3 && !strcmp(argv[1], "--make")) {
        mkdir(argv[2], 0777);
        return make(argv[2]) ? 0 : 1;
    }
    if (argc > 2)
        runs = strtoull(argv[2], NULL, 10);
    count = argc > 1 ? read_corpus(argv[1], inputs) : 0;
    if (!count) {
        fprintf(stderr, "usage: %s CORPUS [runs]\n       %s --make CORPUS\n", name, name);
        return 2;
    }
    for (uint32_t i = 0; i < count; i++)
        LLVMFuzzerTestOneInput(inputs[i].bytes, inputs[i].size);
    for (uint64_t i = 0; i < runs; i++) {
        in = inputs[roll(count)];
        for (uint64_t n = roll(4) + 1; n; n--)
            mutate(&in, &inputs[roll(count)]);
        LLVMFuzzerTestOneInput(in.bytes, in.size);
    }
    printf("%u inputs, %llu mutations: no promise broken\n", count, (unsigned long long)runs);
    return 0;
}
