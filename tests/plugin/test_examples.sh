#!/bin/sh
# The examples for engine programmers run, those with Vulkan without a word of its validation layer, and are short; nothing that is
# to be copied counts the bytes of its structs by hand; and the C texts of INTEGRATION.md are tried.
# usage: test_examples.sh BUILD
# SPDX-License-Identifier: Apache-2.0
set -eu
build=$1
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd -P)
examples=$root/engine_plugin/examples
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

fail() {
    printf '%s\n' "$*"
    exit 1
}

# says TEXT PROGRAM [ARGUMENTS...]: it succeeds, and a line of what it says is TEXT, a pattern.
says() {
    text=$1
    shift
    timeout 100 "$@" >"$work/said" 2>&1 || fail "$* failed: $(cat "$work/said")"
    grep -qx "$text" "$work/said" || fail "$* does not say '$text': $(cat "$work/said")"
}

# by_hand FILE...: what is to be copied from leaves struct_bytes to TANDEM_INIT().
by_hand() {
    grep -rnE 'struct_bytes *= *(\(uint32_t\) *)?sizeof' "$@"
}

echo '    tandem_job job = {.struct_bytes = sizeof job};' >"$work/by_hand.c"
by_hand "$work/by_hand.c" >/dev/null || fail "a struct_bytes that is set by hand is not found"
# shellcheck disable=SC2046
if by_hand "$examples" "$root/tests/plugin/test_install.sh" "$root/tests/plugin/test_integration.c" "$root/demo" \
    "$root/engine_plugin/tool" $(find "$root" -maxdepth 2 -name '*.md'); then
    fail "an example sets struct_bytes by hand: TANDEM_INIT() does"
fi

for file in "$examples"/*.c "$examples"/*.cpp; do
    most=150
    [ "${file##*/}" != vulkan_image.c ] || most=300
    [ "$(wc -l <"$file")" -le $most ] || fail "$file has more than $most lines"
    name=${file##*/}
    grep -q "(engine_plugin/examples/$name)" "$root/README.md" || fail "README.md does not name $name"
done

cd "$build/examples"
says 'done, o\[0\] = -0[.].*' ./hello
says 'done on .*, y\[0\] = -1.000, y\[1\] = 1.000' ./hello_cpp
says 'a session on .*' ./dlopen "$build/libtandem.so.0"
says 'without Tandem: .*' ./dlopen "$work/none.so"
says 'there is no CUDA device here\|done, y\[0\] = -1.000, y\[1\] = 1.000' ./cuda_stream
[ -x ./vulkan_buffer ] && [ -x ./vulkan_image ] || fail "the examples with Vulkan were not built"
says 'done, y\[0\] = -1.000, y\[1\] = 1.000' ./vulkan_buffer
for rung in '' 4; do
    # shellcheck disable=SC2086
    says 'frame 10: red 200 became 100' ./vulkan_image $rung
done
! timeout 60 ./vulkan_image 9 >"$work/said" 2>&1 || fail "vulkan_image takes a rung that there is not"
grep -q 'desc.rung is 9' "$work/said" || fail "vulkan_image does not say why: $(cat "$work/said")"

# is_silent PROGRAM: the layer, which says what it finds on the standard output, has said nothing. Old ones raise false alarms,
# and wait for ten seconds: INTEGRATION.md has which.
is_silent() {
    ! grep -v 'UNASSIGNED-Vk[A-Za-z]*-state-timeout\|VUID-VkSemaphoreSignalInfo-value-03259' "$work/said" | grep -i 'valid' ||
        fail "the validation layer has something to say of $1"
}

export VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation VK_LAYER_ENABLES=VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
says 'done, y\[0\] = -1.000, y\[1\] = 1.000' ./vulkan_buffer
is_silent vulkan_buffer
says 'frame 10: red 200 became 100' ./vulkan_image
is_silent vulkan_image
# It is there, and would say so: a barrier that is left out is found.
sed 's/^    read_by_host(commands);//; s/\(vkCmdPipelineBarrier\)(commands, COMPUTE . TRANSFER/if (0) &/' \
    "$examples/vulkan_image.c" >"$work/vulkan_image.c"
cp "$examples/vulkan_device.h" "$work"
gcc -std=c17 -I"$root/interop/include" -I"$root/engine_plugin/include" "$work/vulkan_image.c" -o "$work/faulty" -L"$build" -ltandem \
    -lvulkan -Wl,-rpath,"$build"
timeout 100 "$work/faulty" >"$work/said" 2>&1 || :
grep -q 'Validation Error' "$work/said" || fail "a barrier that is missing is not found: $(cat "$work/said")"
unset VK_INSTANCE_LAYERS VK_LAYER_ENABLES

# What engine programmers copy needs nothing but the public headers.
mkdir "$work/demo"
cp "$root/demo/integrate.c" "$root/demo/integrate.h" "$work/demo"
gcc -std=c17 -Wall -Wextra -Werror -I"$root/interop/include" -I"$root/engine_plugin/include" -I"$work" -c "$work/demo/integrate.c" \
    -o "$work/integrate.o"

# Each C text of INTEGRATION.md is, word for word, in the program that tries it.
awk '
    NR == FNR { program = program $0 "\n"; next }
    /^```c[ \t]*$/ { inside = 1; text = ""; next }
    /^```/ && inside { inside = 0; found++; if (!index(program, text)) { printf "not tried:\n%s", text; wrong = 1 } next }
    inside { text = text $0 "\n" }
    END { exit wrong || !found }
' "$root/tests/plugin/test_integration.c" "$root/engine_plugin/INTEGRATION.md" ||
    fail "a C text of INTEGRATION.md is not in tests/plugin/test_integration.c"
