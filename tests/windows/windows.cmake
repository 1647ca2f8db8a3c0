# The tests that run on Windows, here under Wine: those that ask no more of the system than interop/os/ has, and what is only
# there. Not built: what needs descriptors of Linux (memfd, eventfd, poll), fork(), dlopen() of what the linker replaces, tandemd,
# and the CUDA emulator's modules.
# SPDX-License-Identifier: Apache-2.0
set(sources cases.c windows/posix.c interop/vk_util.c interop/wire_util.c interop/fake_image.c interop/fake_kernels.c plugin/network_util.c plugin/token_util.c)
foreach(name IN ITEMS attention_compare attention_util each gguf_util gpu_model kernels_util linear_util llama_file llama_util
        minilm_util ring_orders)
    list(APPEND sources kernels/${name}.c)
endforeach()
add_library(tandem_test_support STATIC ${sources})
target_link_libraries(tandem_test_support PUBLIC tandem_setup PkgConfig::CMOCKA)
target_compile_definitions(tandem_test_support PRIVATE "TD_TESTS_FOLDER=\"${CMAKE_CURRENT_SOURCE_DIR}\"")
target_compile_options(tandem_test_support PUBLIC -include ${CMAKE_CURRENT_SOURCE_DIR}/windows/posix.h)

set(unpacked ${PROJECT_BINARY_DIR}/models)
set(packed ${CMAKE_CURRENT_SOURCE_DIR}/kernels/models.tar.xz)
add_custom_command(OUTPUT ${unpacked}.unpacked DEPENDS ${packed} VERBATIM
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${unpacked}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${unpacked}
    COMMAND ${CMAKE_COMMAND} -E chdir ${unpacked} ${CMAKE_COMMAND} -E tar xf ${packed}
    COMMAND ${CMAKE_COMMAND} -E touch ${unpacked}.unpacked)
add_custom_target(models_unpacked ALL DEPENDS ${unpacked}.unpacked)

# Each by Wine, in a prefix of the build folder that the first one makes, with a display, as Wine's Vulkan wants one.
set(wine sh ${CMAKE_CURRENT_SOURCE_DIR}/windows/wine.sh ${PROJECT_BINARY_DIR})
function(td_windows_test name)
    add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
    set_tests_properties(${name} PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77 FIXTURES_REQUIRED wine
        ENVIRONMENT "TANDEM_BUILD=${PROJECT_BINARY_DIR};TANDEM_SOURCE=${PROJECT_SOURCE_DIR}")
endfunction()
add_test(NAME wine COMMAND ${wine})
set_tests_properties(wine PROPERTIES FIXTURES_SETUP wine TIMEOUT 120)

set(programs windows/test_system windows/test_wire windows/test_daemon windows/test_layer kernels/test_any_views kernels/test_attention_cpu kernels/test_blocks kernels/test_graph
    kernels/test_llama kernels/test_models kernels/test_plan kernels/test_program kernels/test_ring kernels/test_tuning
    plugin/test_grammar plugin/test_job_life plugin/test_ladder plugin/test_network plugin/test_sampling plugin/test_tokenizer)
foreach(program IN LISTS programs)
    get_filename_component(name ${program} NAME)
    string(REGEX REPLACE "(^|/)test_" "\\1" folder ${program})
    file(GLOB parts CONFIGURE_DEPENDS ${folder}/*.c)
    add_executable(${name} ${program}.c ${parts})
    target_link_libraries(${name} PRIVATE tandem_test_support tandem_core PkgConfig::CMOCKA)
    add_dependencies(${name} tandem_shaders)
    td_windows_test(${name} ${wine} $<TARGET_FILE:${name}>)
endforeach()

# What is the same on every system, and every wire.
target_sources(test_system PRIVATE interop/os/both.c)
target_sources(test_wire PRIVATE interop/wire/messages.c interop/wire/greeting.c interop/wire/conversation.c)
target_include_directories(test_wire PRIVATE windows/posix)
add_dependencies(test_daemon tandemd tandem_tool)
target_sources(test_layer PRIVATE plugin/layer/filter.c)
add_dependencies(test_layer tandem_layer tandem_tool)
set_property(TEST test_layer APPEND PROPERTY ENVIRONMENT VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation # loaded below Wine's Vulkan
    VK_LAYER_ENABLES=VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT)
# Alone: Wine's desktop is there as long as a window is, and so long has the output of whichever test has made it no end.
set_tests_properties(test_layer PROPERTIES FAIL_REGULAR_EXPRESSION "VUID-;SYNC-HAZARD-;UNASSIGNED-" TIMEOUT 900 RUN_SERIAL ON)
set_source_files_properties(interop/wire/messages.c PROPERTIES COMPILE_OPTIONS "-Wno-format;-Wno-format-extra-args") # %zu

# The examples, as who gets the archive runs them; and the tool, whose results are to be those of Linux.
foreach(name IN ITEMS hello hello_cpp dlopen vulkan_buffer vulkan_image)
    td_windows_test(example_${name} ${wine} $<TARGET_FILE:example_${name}>)
endforeach()
foreach(name IN ITEMS vulkan_buffer vulkan_image) # on the rung cpu, in memory that Vulkan and the CPU share
    set_tests_properties(example_${name} PROPERTIES PASS_REGULAR_EXPRESSION "rung 5 [^\n]*\n(.*\n)*(done|frame)" FAIL_REGULAR_EXPRESSION "copy")
endforeach()

# The rungs of a GPU on a driver of CUDA that is none: in a folder of its own, where nobody else finds it.
add_library(nvcuda SHARED windows/nvcuda.c windows/posix.c interop/fake_cuda.c interop/fake_cuda_kernels.c interop/fake_cuda_streams.c
    interop/fake_image.c)
target_link_libraries(nvcuda PRIVATE tandem_core)
target_compile_options(nvcuda PRIVATE -include ${CMAKE_CURRENT_SOURCE_DIR}/windows/posix.h)
set_target_properties(nvcuda PROPERTIES PREFIX "" LINK_FLAGS "-static")
file(GLOB parts CONFIGURE_DEPENDS windows/handles/*.c)
add_executable(test_handles windows/test_handles.c ${parts})
target_link_libraries(test_handles PRIVATE tandem_test_support tandem_core PkgConfig::CMOCKA)
target_link_options(test_handles PRIVATE -Wl,--wrap=td_cubins)
set_target_properties(nvcuda test_handles PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/handles)
add_dependencies(test_handles nvcuda tandem_shaders)
td_windows_test(test_handles ${wine} $<TARGET_FILE:test_handles>)
