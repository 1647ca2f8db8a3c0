# What demo/run.sh and tests/run.sh share: installs what is missing, configures and builds. Read by `.`, with $root set.
# SPDX-License-Identifier: Apache-2.0

td_packages="gcc g++ cmake ninja-build pkg-config python3 python3-numpy
libvulkan-dev mesa-vulkan-drivers vulkan-validationlayers glslc
libsdl2-dev libcglm-dev libimgui-dev libstb-dev libcmocka-dev libjansson-dev libpng-dev libopenexr-dev
libpcre2-dev libzstd-dev zstd libmicrohttpd-dev
xvfb xauth libxtst6 fonts-dejavu-core"

td_say() {
    printf '%s\n' "tandem: $*"
}

td_die() {
    printf '%s\n' "tandem: $*" >&2
    exit 1
}

# Installs the Debian packages that are missing; asks nothing.
td_install() {
    if ! command -v dpkg-query >/dev/null 2>&1; then
        td_absent=
        for td_tool in gcc g++ cmake pkg-config glslc; do
            command -v "$td_tool" >/dev/null 2>&1 || td_absent="$td_absent $td_tool"
        done
        [ -z "$td_absent" ] || td_die "this is no Debian, and these are missing:$td_absent. Needed are what Debian 12 calls:" $td_packages
        return 0
    fi
    td_missing=
    for td_package in $td_packages; do
        case $(dpkg-query -W -f '${db:Status-Abbrev}' "$td_package" 2>/dev/null) in
        ?i*) ;;
        *) td_missing="$td_missing $td_package" ;;
        esac
    done
    [ -n "$td_missing" ] || return 0
    command -v apt-get >/dev/null 2>&1 || td_die "no apt-get to install what is missing:$td_missing"
    td_sudo=
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || td_die "neither root nor sudo to install what is missing:$td_missing"
        td_sudo=sudo
    fi
    td_say "installing$td_missing"
    td_log=$(mktemp)
    for td_step in update "install -y --no-install-recommends$td_missing"; do
        # shellcheck disable=SC2086
        if ! $td_sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 $td_step \
            </dev/null >"$td_log" 2>&1; then
            tail -n 30 "$td_log" >&2
            rm -f "$td_log"
            td_die "apt-get ${td_step%% *} failed"
        fi
    done
    rm -f "$td_log"
}

# td_progress FOLDER START: says every ten seconds how far the build in FOLDER is, until it is ended or this script has been.
td_progress() {
    while sleep "${TD_PROGRESS_S:-10}" >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        # "[12/345]" by ninja, "[ 12%]" by make.
        td_step=$(sed -n 's/^\[ *\([0-9/%]*\)\].*/\1/p' "$1/build.log" | tail -n 1)
        td_say "${1##*/}: ${td_step:+step $td_step, }$(($(date +%s) - $2)) s"
    done
}

# td_fetch_sources PACKAGE...: the sources that Debian has of them, which apt checks, into the working folder; by a list of packages of its
# own: the machine's is left as it is.
td_fetch_sources() {
    mkdir -p lists/partial archives/partial
    cat >sources.sources <<END
Types: deb-src
URIs: http://deb.debian.org/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
    cat >apt.conf <<END
Dir::Etc::sourcelist "$PWD/sources.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "$PWD/lists";
Dir::Cache "$PWD";
APT::Sandbox::User "";
END
    for td_step in update "source --download-only $*"; do
        # shellcheck disable=SC2086
        APT_CONFIG=$PWD/apt.conf apt-get -q $td_step >apt.log 2>&1 || {
            cat apt.log >&2
            td_die "apt-get ${td_step%% *} of sources failed"
        }
    done
}

# td_build PRESET FOLDER [configure options]: configures and builds, all or $td_target alone; shows what the compiler said only if it
# failed.
td_target=all
td_build() {
    td_preset=$1
    td_folder=$root/$2
    shift 2
    if [ -f "$td_folder/CMakeCache.txt" ] && ! grep -q "^CMAKE_HOME_DIRECTORY:INTERNAL=$root\$" "$td_folder/CMakeCache.txt"; then
        td_say "${td_folder##*/} was configured for another place: configuring anew"
        rm -rf "$td_folder/CMakeCache.txt" "$td_folder/CMakeFiles"
    fi
    mkdir -p "$td_folder"
    if [ -z "${CMAKE_GENERATOR-}" ] && [ ! -f "$td_folder/CMakeCache.txt" ] && command -v ninja >/dev/null 2>&1; then
        set -- -G Ninja "$@"
    fi
    td_start=$(date +%s)
    (cd "$root" && cmake --preset "$td_preset" "$@") >"$td_folder/configure.log" 2>&1 || {
        cat "$td_folder/configure.log" >&2
        td_die "configuring ${td_folder##*/} failed"
    }
    sed -n 's/^-- \(CUDA kernels: .*\)/tandem: \1/p' "$td_folder/configure.log"
    td_jobs=$(nproc 2>/dev/null || echo 2)
    td_say "building ${td_folder##*/} with $td_jobs jobs"
    : >"$td_folder/build.log"
    td_progress "$td_folder" "$td_start" &
    td_monitor=$!
    td_status=0
    cmake --build "$td_folder" --target "$td_target" --parallel "$td_jobs" >"$td_folder/build.log" 2>&1 || td_status=$?
    kill "$td_monitor" 2>/dev/null || :
    wait "$td_monitor" 2>/dev/null || :
    [ "$td_status" = 0 ] || {
        tail -n 80 "$td_folder/build.log" >&2
        td_die "building ${td_folder##*/} failed; all of it is in $td_folder/build.log"
    }
    td_say "built ${td_folder##*/} in $(($(date +%s) - td_start)) s"
}
