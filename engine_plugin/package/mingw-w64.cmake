# For Windows on x86-64, by Debian's mingw-w64; tests run by Wine where it is. The libraries that Debian has for no Windows are
# built by demo/setup-windows.sh, into TANDEM_WINDOWS_LIBRARIES.
# SPDX-License-Identifier: Apache-2.0
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(mingw x86_64-w64-mingw32)
set(CMAKE_C_COMPILER ${mingw}-gcc-posix) # with winpthreads
set(CMAKE_CXX_COMPILER ${mingw}-g++-posix)
set(CMAKE_RC_COMPILER ${mingw}-windres)
set(TANDEM_DLLTOOL ${mingw}-dlltool)
set(TANDEM_WINDOWS_LIBRARIES ${CMAKE_CURRENT_LIST_DIR}/../../build-windows/libraries CACHE PATH "What demo/setup-windows.sh has built")
cmake_path(ABSOLUTE_PATH TANDEM_WINDOWS_LIBRARIES NORMALIZE OUTPUT_VARIABLE libraries)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TANDEM_WINDOWS_LIBRARIES)

set(CMAKE_FIND_ROOT_PATH ${libraries} /usr/${mingw})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${libraries}/lib/pkgconfig)

# Windows 10. printf() is that of C, not of Microsoft's library. A function's stack is aligned to 16 bytes there, whatever gcc
# takes it for when it spills vectors of 32 (its bug 54412): the assembler makes moves of them that ask for no alignment.
set(CMAKE_C_FLAGS_INIT "-D_WIN32_WINNT=0x0a00 -D__USE_MINGW_ANSI_STDIO=1 -Wa,-muse-unaligned-vector-move")
set(CMAKE_CXX_FLAGS_INIT "${CMAKE_C_FLAGS_INIT}")
# Nothing of the compiler's has to lie beside what it makes.
foreach(kind IN ITEMS EXE SHARED MODULE)
    set(CMAKE_${kind}_LINKER_FLAGS_INIT "-static")
endforeach()
find_program(TANDEM_WINE NAMES wine64 wine PATHS /usr/lib/wine)
if(TANDEM_WINE)
    set(CMAKE_CROSSCOMPILING_EMULATOR ${TANDEM_WINE})
endif()
