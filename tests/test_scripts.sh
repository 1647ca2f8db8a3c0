#!/bin/sh
# The shell scripts parse, help without doing anything, and install exactly what is missing (seen by a false apt-get).
# usage: test_scripts.sh BUILD
# SPDX-License-Identifier: Apache-2.0
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

fail() {
    echo "test_scripts: $*"
    [ ! -f "$work/out" ] || cat "$work/out"
    exit 1
}

for script in demo/run.sh demo/setup.sh tests/run.sh tests/gpu.sh tests/test_*.sh; do
    case $script in
    *'*'*) continue ;;
    esac
    sh -n "$root/$script" || fail "$script does not parse"
done
bash -n "$root/.ci/run" || fail ".ci/run does not parse"
grep -q '^exec sh tests/run.sh$' "$root/.ci/run" || fail ".ci/run is more than tests/run.sh"

# --help and a wrong option come before any set-up: nothing to install or build with is on this PATH.
mkdir "$work/bare" "$work/bin"
for tool in cat dirname; do
    ln -s "$(command -v $tool)" "$work/bare/$tool"
done
sh=$(command -v sh)
for script in demo/run.sh tests/run.sh tests/gpu.sh; do
    PATH=$work/bare "$sh" "$root/$script" --help >"$work/out" 2>&1 || fail "$script --help failed"
    grep -q '^usage: sh ' "$work/out" || fail "$script --help does not say how to use it"
done
if PATH=$work/bare "$sh" "$root/tests/gpu.sh" --no-such-option >"$work/out" 2>&1; then
    fail "gpu.sh took an unknown option"
fi
grep -q -e '--no-such-option' "$work/out" || fail "gpu.sh does not name the unknown option"

# A machine of our own making: dpkg-query knows the packages in $work/installed, apt-get notes what it is asked for.
cat >"$work/bin/dpkg-query" <<'END'
#!/bin/sh
for package in "$@"; do :; done
if grep -qx -e "$package" "$FAKE/installed"; then
    printf 'ii '
elif grep -qx -e "$package" "$FAKE/removed"; then
    printf 'rc '
else
    echo "dpkg-query: no packages found matching $package" >&2
    exit 1
fi
END
cat >"$work/bin/apt-get" <<'END'
#!/bin/sh
echo "apt-get $*" >>"$FAKE/calls"
[ "${DEBIAN_FRONTEND-}" = noninteractive ] || exit 9
[ ! -e "$FAKE/broken" ] || { echo "E: no network"; exit 100; }
END
cat >"$work/bin/id" <<'END'
#!/bin/sh
cat "$FAKE/uid"
END
cat >"$work/bin/sudo" <<'END'
#!/bin/sh
echo sudo >>"$FAKE/calls"
exec "$@"
END
chmod +x "$work"/bin/*
for tool in cat grep mktemp env tail rm sh; do
    ln -s "$(command -v $tool)" "$work/bin/$tool"
done

# install UID: runs the set-up's first half there.
install() {
    : >"$work/calls"
    echo "$1" >"$work/uid"
    FAKE=$work PATH=$work/bin "$sh" -c 'set -eu; root=$1; . "$root/demo/setup.sh"; td_install' - "$root" >"$work/out" 2>&1
}

all=$(sed -n '/^td_packages="/,/"$/p' "$root/demo/setup.sh" | sed 's/td_packages=//; s/"//g')
for package in gcc cmake glslc libvulkan-dev mesa-vulkan-drivers libimgui-dev libcmocka-dev libjansson-dev libpng-dev; do
    case " $(echo $all) " in
    *" $package "*) ;;
    *) fail "$package is not in the list" ;;
    esac
done
: >"$work/removed"

printf '%s\n' $all >"$work/installed"
install 0 || fail "set-up failed with everything there"
[ ! -s "$work/calls" ] && [ ! -s "$work/out" ] || fail "something was done or said with everything there"

printf '%s\n' $all | grep -vx -e glslc -e libpng-dev >"$work/installed"
echo glslc >"$work/removed"
install 0 || fail "set-up failed as root"
[ "$(cat "$work/out")" = "tandem: installing glslc libpng-dev" ] || fail "it does not say exactly what it installs"
[ "$(grep -c '^apt-get ' "$work/calls")" = 2 ] || fail "not one update and one install"
sed -n 1p "$work/calls" | grep -q ' update$' || fail "no update first"
sed -n 2p "$work/calls" | grep -q ' install -y --no-install-recommends glslc libpng-dev$' || fail "wrong packages"

install 1000 || fail "set-up failed with sudo"
[ "$(grep -c '^sudo$' "$work/calls")" = 2 ] || fail "no sudo where it is needed"
mv "$work/bin/sudo" "$work/sudo"
if install 1000; then fail "went on without root or sudo"; fi
grep -q 'sudo.* glslc libpng-dev' "$work/out" || fail "does not name what needs sudo"
touch "$work/broken"
if install 0; then fail "went on after apt-get failed"; fi
grep -q 'no network' "$work/out" || fail "hides why apt-get failed"
rm "$work/bin/apt-get"
if install 0; then fail "went on without apt-get"; fi
grep -q 'no apt-get.* glslc libpng-dev' "$work/out" || fail "does not name what is missing"
printf '%s\n' $all >"$work/installed"
install 1000 || fail "needs apt-get with everything there"
echo "scripts are sound"
