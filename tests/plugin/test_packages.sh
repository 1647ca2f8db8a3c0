#!/bin/sh
# Makes the Debian packages, lets lintian judge them, installs them, uses what they brought, and removes them: nothing is left.
# usage: test_packages.sh BUILD [--debootstrap]
# They are installed into an empty folder by this system's dpkg, which knows what it has of what they depend on; with --debootstrap
# by apt into a bare Debian 12, which takes a minute and a network.
# SPDX-License-Identifier: Apache-2.0
set -eu
build=$1
bare=${2-}
for tool in dpkg-deb dpkg-shlibdeps lintian cpack; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "$tool is missing"
        exit 77
    }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

fail() {
    echo "test_packages: $*"
    [ ! -f "$work/log" ] || tail -n 40 "$work/log"
    exit 1
}

umask 022
(cd "$build" && cpack -G DEB -B "$work/packages") >"$work/log" 2>&1 || fail "cpack failed"
cd "$work/packages"
names="libtandem0 libtandem-dev tandemd python3-tandem"
[ ! -f "$build/libVkLayer_tandem_effect.so" ] || names="$names tandem-layer"
[ ! -x "$build/tandem" ] || names="$names tandem-tools"
files=
for name in $names; do
    set -- "${name}"_*.deb
    [ -f "$1" ] || fail "$name was not made: $(ls)"
    files="$files $work/packages/$1"
done
# shellcheck disable=SC2086
lintian --allow-root --fail-on error --tag-display-limit 0 $files >"$work/log" 2>&1 || fail "lintian found errors"
cp "$work/log" "$work/judged"
for file in $files; do
    if dpkg-deb --fsys-tarfile "$file" | tar -xO 2>/dev/null | grep -qaF "$build"; then
        fail "$file names the folder of the build"
    fi
done

# Which version of the package has a function: a program of the first ones needs no newer library.
dpkg-deb --ctrl-tarfile libtandem0_*.deb | tar -xO ./symbols >"$work/symbols" 2>"$work/log" || fail "libtandem0 has no symbols file"
grep -qx ' tandem_submit@TANDEM_0.1 0.1.0' "$work/symbols" && grep -qx ' tandem_npc_create@TANDEM_0.2 0.2.0' "$work/symbols" &&
    [ "$(grep -c '^ tandem_' "$work/symbols")" = "$(nm -D --defined-only "$build/libtandem.so.0" | grep -c ' T tandem_')" ] || {
    cp "$work/symbols" "$work/log"
    fail "the symbols file of libtandem0 is not of what the library exports"
}

# The archive of the source has what git has, and nothing of this machine's.
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd -P)
(cd "$build" && cpack --config CPackSourceConfig.cmake -B "$work/source") >"$work/log" 2>&1 || fail "cpack of the source failed"
tar -tf "$work"/source/tandem-*.tar.xz | sed -n 's,^[^/]*/\(.*[^/]\)$,\1,p' >"$work/packed"
if git -C "$root" ls-files --cached --others --exclude-standard >"$work/tracked" 2>/dev/null; then
    grep -v '^\.ci/' "$work/tracked" | LC_ALL=C sort >"$work/wanted"
    LC_ALL=C sort "$work/packed" | diff "$work/wanted" - >"$work/log" || fail "the archive of the source is not what git has"
fi

target=$work/root
if [ "$bare" = --debootstrap ]; then
    debootstrap --variant=minbase bookworm "$target" >"$work/log" 2>&1 || fail "debootstrap failed"
    # shellcheck disable=SC2086
    cp $files "$target/tmp"
    on() { chroot "$target" "$@"; }
    # shellcheck disable=SC2046
    on apt-get install -y --no-install-recommends $(cd "$target" && ls tmp/*.deb | sed 's,^,/,') >"$work/log" 2>&1 ||
        fail "apt-get cannot install them"
else
    mkdir "$target"
    cp -R /var/lib/dpkg "$work/known"
    dpkg_here() { dpkg --instdir="$target" --admindir="$work/known" --force-script-chrootless --no-triggers "$@"; }
    on() { command=$1 && shift && LD_LIBRARY_PATH=$target/usr/lib "$target$command" "$@"; }
    # shellcheck disable=SC2086
    dpkg_here --install $files >"$work/log" 2>&1 || fail "dpkg cannot install them"
fi

on /usr/bin/tandemd --help >"$work/log" 2>&1 || fail "tandemd does not run"
grep -qxF 'ExecStart="/usr/bin/tandemd"' "$target/usr/lib/systemd/user/tandemd.service" || fail "the unit does not start tandemd"
if [ -x "$build/tandem" ]; then
    on /usr/bin/tandem doctor >"$work/log" 2>&1 || [ $? = 1 ] || fail "tandem doctor does not run"
    on /usr/bin/tandem sample-qkv --out "$work/qkv" --heads 2 --n 64 --d 64 >"$work/log" 2>&1 || [ "$bare" ] ||
        fail "tandem does not write a file"
    for page in tandem tandem-attend tandemd; do
        [ -f "$target/usr/share/man/man1/$page.1.gz" ] || fail "there is no man page of $page"
    done
    if grep -qF "no-manual-page [usr/bin/" "$work/judged"; then
        cp "$work/judged" "$work/log"
        fail "lintian misses a man page"
    fi
fi
# A program that is built with what libtandem-dev brought runs with what libtandem0 did.
printf '%s\n' '#include <tandem/tandem.h>' 'int main(void) { return tandem_version() != TANDEM_VERSION; }' >"$work/user.c"
gcc -std=c17 "-I$target/usr/include" "$work/user.c" "-L$target/usr/lib" -ltandem -o "$work/user" >"$work/log" 2>&1 || fail "cannot build"
LD_LIBRARY_PATH=$target/usr/lib "$work/user" || fail "a program that was built with libtandem-dev does not run"
LD_LIBRARY_PATH=$target/usr/lib PYTHONPATH=$target/usr/lib/python3/dist-packages PYTHONDONTWRITEBYTECODE=1 \
    python3 -c 'import tandem; assert tandem.__file__.startswith("'"$target"'"); tandem.Session(rung="cpu")' >"$work/log" 2>&1 ||
    fail "Python does not find the library"
for library in "$target"/usr/lib/libtandem.so.0.* "$target"/usr/lib/tandem/*.so; do
    [ -e "$library" ] || continue
    if readelf -d "$library" | grep -q -e RPATH -e RUNPATH; then
        fail "$library has a path to look in"
    fi
done

# shellcheck disable=SC2086
if [ "$bare" ]; then
    on dpkg --purge $names >"$work/log" 2>&1 || fail "dpkg cannot remove them"
else
    dpkg_here --purge $names >"$work/log" 2>&1 || fail "dpkg cannot remove them"
fi
left=$(find "$target" -name '*tandem*' -not -path '*/tmp/*' -not -path '*/proc/*' -not -name '*.log')
[ -z "$left" ] || fail "what is left: $left"
[ "$bare" ] || [ -z "$(find "$target" -mindepth 1 -not -type d)" ] || fail "what is left: $(find "$target" -not -type d)"
