"""The C++17 wrapper, from the public headers: a class for what is made and destroyed, a method for each function.

SPDX-License-Identifier: Apache-2.0
"""
import re

# What is owned: its class, with the type of what it is made on.
IDS = {"tandem_mem": "mem", "tandem_timeline": "timeline", "tandem_model": "model", "tandem_instance": "instance"}
POINTERS = {"tandem_session": "session", "tandem_language": "language", "tandem_npc": "npc",
            "tandem_embedder": "embedder"}
BY_HAND = {"tandem_error_text", "tandem_supported", "tandem_retire", "tandem_get_api"}

SAYS = """/* {title}
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Made by engine_plugin/bindings/generate.py from the headers of C, which say what each function does, who owns what, which
 * thread may call, and whether it blocks: that is the same here. {more}
 */
"""

MORE = """What fails throws tandem::error, with the library's text; what is
 * not there yet throws tandem::busy, but for try_NAME(), which then returns false or nothing. Objects are moved, never copied;
 * each keeps alive what it was made on, so the order in which they go does not matter. The engine's own device, and memory that it
 * has lent, must outlive them all: a session ends with the last of its objects.
 *
 *     tandem::session session;
 *     auto desc = tandem::make<tandem_mem_desc>();
 *     desc.bytes = 4096;
 *     tandem::mem mem(session, desc);
 *     float *host = static_cast<float *>(mem.host());"""

PROLOGUE = """#ifndef TANDEM_TANDEM_HPP
#define TANDEM_TANDEM_HPP

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tandem/npc.h"
#include "tandem/tandem.h"

namespace tandem {

/* A struct of the API with struct_bytes set, and all else 0. */
template <class T> inline T make()
{
    return tandem_init<T>();
}

class error : public std::runtime_error {
public:
    error(tandem_status status, const std::string &text) : std::runtime_error(text), status_(status) {}
    tandem_status status() const noexcept { return status_; }

private:
    tandem_status status_;
};

/* TANDEM_ERROR_BUSY: not yet. */
class busy : public error {
public:
    using error::error;
};

/* Throws what this thread's last call failed with. */
inline void check(tandem_status status)
{
    char text[2048] = "";

    if (status == TANDEM_OK)
        return;
    tandem_error_text(nullptr, text, sizeof text);
    const char *const said = *text ? text : tandem_status_text(status);
    if (status == TANDEM_ERROR_BUSY)
        throw busy(status, said);
    throw error(status, said);
}

/* False where it is not yet; throws what else has failed. */
inline bool check_busy(tandem_status status)
{
    if (status != TANDEM_ERROR_BUSY)
        check(status);
    return status != TANDEM_ERROR_BUSY;
}

/* Elements that lie one behind the other, for the length of a call. */
template <class T> class list {
public:
    list() = default;
    list(const T *data, std::size_t size) : data_(data), size_(size) {}
    list(const std::vector<T> &from) : data_(from.data()), size_(from.size()) {}
    list(std::initializer_list<T> from) : size_(from.size()) { data_ = from.size() ? &*from.begin() : nullptr; }
    template <std::size_t N> list(const T (&from)[N]) : data_(from), size_(N) {}
    template <std::size_t N> list(const std::array<T, N> &from) : data_(from.data()), size_(N) {}
    const T *data() const noexcept { return data_; }
    std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(size_); }
    std::uint64_t bytes() const noexcept { return size_ * sizeof(T); }

private:
    const T *data_ = nullptr;
    std::size_t size_ = 0;
};

/* Fills an array that has the length that the library tells; it may have grown in between. */
template <class T, class Call> std::vector<T> fetch(Call call)
{
    std::vector<T> found;
    std::uint32_t count = 0;
    tandem_status status = call(&count, static_cast<T *>(nullptr));

    while (count && (status == TANDEM_OK || status == TANDEM_ERROR_BUSY) && found.size() < count) {
        found.assign(count, make<T>());
        status = call(&count, found.data());
    }
    check(status);
    found.resize(count < found.size() ? count : found.size());
    return found;
}

/* The same of bytes. */
template <class Call> std::vector<unsigned char> fetch_bytes(Call call)
{
    std::vector<unsigned char> found;
    std::uint64_t bytes = 0;
    tandem_status status = call(static_cast<void *>(nullptr), &bytes);

    while ((status == TANDEM_OK || status == TANDEM_ERROR_BUSY) && found.size() < bytes) {
        found.resize(bytes);
        status = call(found.data(), &bytes);
    }
    check(status);
    found.resize(bytes < found.size() ? bytes : found.size());
    return found;
}

class session;

/* What is named by an id, and destroyed with its owner here. */
template <class Id, tandem_status (*Destroy)(tandem_session *, Id)> class owned {
public:
    owned() = default;
    owned(owned &&from) noexcept : session_(std::move(from.session_)), id_(std::exchange(from.id_, 0)) {}
    owned &operator=(owned &&from) noexcept
    {
        owned old(std::move(*this));

        session_ = std::move(from.session_);
        id_ = std::exchange(from.id_, 0);
        return *this;
    }
    ~owned()
    {
        if (id_ && Destroy(session_.get(), id_) == TANDEM_ERROR_BUSY)
            tandem_retire(session_.get(), id_); /* a job that hangs keeps it until it ends */
    }
    operator Id() const noexcept { return id_; }
    Id id() const noexcept { return id_; }
    explicit operator bool() const noexcept { return id_ != 0; }
    /* Now, and throws what the destructor would not say. After BUSY it is there still. */
    void destroy()
    {
        check(Destroy(session_.get(), id_));
        id_ = 0;
    }
    /* Without waiting: it goes when the last job with it has ended. */
    void retire()
    {
        check(tandem_retire(session_.get(), id_));
        id_ = 0;
    }

protected:
    explicit owned(std::shared_ptr<tandem_session> session) : session_(std::move(session)) {}
    std::shared_ptr<tandem_session> session_;
    Id id_ = 0;
};

/* Of tandem_supported(): whether a job would be taken, else why not. */
struct support {
    tandem_status status;
    std::uint64_t scratch_bytes;
    std::string why;
    explicit operator bool() const noexcept { return status == TANDEM_OK; }
};
"""

SUPPORTED = """    support supported(const tandem_job &job) const
    {
        support found{};
        char why[2048] = "";

        found.status = tandem_supported(get(), &job, &found.scratch_bytes, why, sizeof why);
        found.why = why;
        return found;
    }
    void retire(std::uint64_t id) const { check(tandem_retire(get(), id)); }
    /* Of whichever thread or job failed last on it. */
    std::string error_text() const
    {
        char text[2048] = "";

        check(tandem_error_text(get(), text, sizeof text));
        return text;
    }
"""


class Call:
    """A function of C as one of C++: what it takes, what it returns."""

    def __init__(self, headers, function, drop):
        self.function = function
        self.takes, self.passes, self.outs = [], [], []  # outs: (type, name, how it begins)
        self.fetched = None
        rest = function.parameters[drop:]
        while rest:
            rest = rest[self.take(headers, rest):]

    def take(self, headers, rest):
        """Understands one parameter, or two that belong together; returns how many."""
        p, after = rest[0], rest[1] if len(rest) > 1 else None
        struct = headers.structs.get(p.type)
        if p.type == "void" and p.pointer == 1 and after and (after.name, after.type) == ("bytes", "uint64_t"):
            if p.const:
                self.takes.append(f"list<unsigned char> {p.name}")
                self.passes += [f"{p.name}.data()", f"{p.name}.bytes()"]
            else:
                self.fetched = "unsigned char"
                self.passes += ["to", "bytes"]
            return 2
        if p.type == "uint32_t" and p.pointer and p.name == "count" and after:
            self.fetched = after.type
            self.passes += ["count", "list"]
            return 2
        if p.pointer == 1 and p.const and after and after.type == "uint32_t" and re.fullmatch(r"(\w+_)?count", after.name):
            self.takes.append(f"list<{cxx(p.type)}> {p.name} = {{}}" if len(rest) == 2 and p.type == "uint32_t" else
                              f"list<{cxx(p.type)}> {p.name}")
            self.passes += [f"{p.name}.data()", f"{p.name}.size()"]
            return 2
        if p.array:
            self.outs.append((f"std::array<{cxx(p.type)}, {p.array}>", p.name, "{}"))
            self.passes.append(f"{p.name}.data()")
        elif p.pointer and not p.const and p.type not in POINTERS:
            of = cxx(p.type) + (" *" if p.pointer == 2 else "")
            self.outs.append((of, p.name, f" = make<{p.type}>()" if struct and struct.sized else "{}"))
            self.passes.append(f"&{p.name}")
        elif p.pointer and struct:
            self.takes.append(f"const {p.type} &{p.name}")
            self.passes.append(f"&{p.name}")
        else:
            self.takes.append(f"{'const ' if p.const else ''}{cxx(p.type)} {'*' * p.pointer}{p.name}".replace("* ", "*"))
            self.passes.append(p.name)
        return 1

    @property
    def returns(self):
        if self.fetched:
            return f"std::vector<{self.fetched}>"
        types = [of for of, _, _ in self.outs]
        return "void" if not types else types[0] if len(types) == 1 else f"std::tuple<{', '.join(types)}>"

    def value(self):
        names = [name for _, name, _ in self.outs]
        return "" if not names else names[0] if len(names) == 1 else f"{{{', '.join(names)}}}"

    def text(self, name, leading, lead_takes=(), const=" const", indent="    ", static="", bool_=False):
        """The definition; leading: what is passed first. bool_: as try_NAME(), for what may be BUSY."""
        called = f"{self.function.name}({', '.join([*leading, *self.passes])})"
        takes = ", ".join([*lead_takes, *self.takes])
        returns = self.returns
        if bool_:
            returns = "bool" if returns == "void" else f"std::optional<{returns}>"
        head = f"{static}{returns} {'try_' if bool_ else ''}{name}({takes}){const}".replace("* ", "*")
        if self.fetched == "unsigned char":
            body = [f"return fetch_bytes([&](void *to, std::uint64_t *bytes) {{ return {called}; }});"]
        elif self.fetched:
            body = [f"return fetch<{self.fetched}>(",
                    f"    [&](std::uint32_t *count, {self.fetched} *list) {{ return {called}; }});"]
        else:
            body = [f"{of} {out}{begin};".replace("* ", "*") for of, out, begin in self.outs]
            if not bool_:
                body += [f"check({called});", *([f"return {self.value()};"] if self.outs else [])]
            elif self.outs:
                body += [f"if (!check_busy({called}))", "    return std::nullopt;",
                         f"return {self.value()};" if len(self.outs) == 1 else f"return {self.returns}{self.value()};"]
            else:
                body = [f"return check_busy({called});"]
        if self.outs and not self.fetched:
            body.insert(len(self.outs), "")
        lines = [head, "{", *(f"    {line}" if line else "" for line in body), "}"]
        return "".join(f"{indent}{line}\n" if line else "\n" for line in lines)

    @property
    def may_be_busy(self):
        return "BUSY" in self.function.comment and not self.fetched


def cxx(of):
    return f"std::{of}" if of in ("uint64_t", "uint32_t", "int64_t", "int32_t", "uint8_t", "size_t") else of


def class_of(function):
    """(class, how many parameters that is) of a method; None: a function."""
    p = function.parameters
    if not p or p[0].type not in POINTERS or p[0].pointer != 1:
        return None, 0
    if p[0].type == "tandem_session" and len(p) > 1 and p[1].type in IDS and not p[1].pointer:
        return IDS[p[1].type], 2
    return POINTERS[p[0].type], 1


def made_by(function):
    """The class of which it makes an object, or none."""
    last = function.parameters[-1] if function.parameters else None
    if last and last.type in IDS and last.pointer == 1:
        return IDS[last.type]
    return POINTERS.get(last.type) if last and last.pointer == 2 and not function.name.endswith("_destroy") else None


def method_name(function):
    return re.sub(r"^tandem_((session|mem|timeline|model|instance|language|npc|embedder)_)?", "", function.name)


def methods(headers, name):
    """Of a class, by the functions of tandem.h and npc.h."""
    text = ""
    for f in headers.functions:
        of, drop = class_of(f)
        if of != name or f.header == "vulkan.h" or f.name in BY_HAND or f.name.endswith("_destroy") or made_by(f):
            continue
        call = Call(headers, f, drop)
        leading = ["session_.get()", "id_"] if drop == 2 else ["get()"]
        text += call.text(method_name(f), leading)
        if call.may_be_busy:
            text += call.text(method_name(f), leading, bool_=True)
    return text


def constructors(headers, name, base):
    """An object is made on a session, a model or a language, from a description or a path."""
    text = ""
    for f in headers.functions:
        if made_by(f) != name or f.name in BY_HAND:
            continue
        parents = [p for p in f.parameters[:2] if p.type in POINTERS or (p.type in IDS and not p.pointer)]
        parent = (IDS | POINTERS)[parents[-1].type]
        desc = f.parameters[len(parents)]
        takes = f"const {desc.type} {'*' if desc.type == 'char' else '&'}{desc.name}"
        passes = desc.name if desc.type == "char" else f"&{desc.name}"
        if desc.type == "tandem_instance_desc":
            takes += f" = make<{desc.type}>()"
        on = f"const {parent} &on"
        of_parent = "on.session_" if parent in IDS.values() else "on.shared()"
        ids = ", on.id()" if parent in IDS.values() else ""
        text += f"    {name}({on}, {takes}) : {base}({of_parent})\n    {{\n"
        text += f"        check({f.name}(session_.get(){ids}, {passes}, &id_));\n    }}\n"
    return text


def id_class(headers, of, name):
    base = f"owned<{of}, {of}_destroy>"
    friend = "    friend class instance;\n\npublic:\n" if name == "model" else "public:\n"
    body = constructors(headers, name, "owned") + methods(headers, name)
    return f"class {name} : public {base} {{\n{friend}    {name}() = default;\n{body}}};\n"


def pointer_class(headers, of, name):
    """What has a pointer: shared with what is made on it."""
    make = next(f for f in headers.functions if made_by(f) == name)
    parents = [p for p in make.parameters[:-1] if p.type in POINTERS]
    desc = make.parameters[len(parents)]
    parent = POINTERS[parents[0].type] if parents else None
    takes = (f"const {parent} &on, " if parent else "") + f"const {desc.type} &{desc.name}"
    takes += "" if parent else f" = make<{desc.type}>()"
    text = f"class {name} {{\npublic:\n"
    text += f"    {'' if parent else 'explicit '}{name}({takes})\n    {{\n        {of} *made = nullptr;\n\n"
    text += f"        check({make.name}({'on.get(), ' if parent else ''}&{desc.name}, &made));\n"
    kept = "[kept = on.shared()]" if parent else "[]"
    text += f"        shared_ = std::shared_ptr<{of}>(made, {kept}({of} *last) {{ {of}_destroy(&last); }});\n    }}\n"
    text += f"    {name}({name} &&) = default;\n    {name} &operator=({name} &&) = default;\n"
    text += f"    {of} *get() const noexcept {{ return shared_.get(); }}\n"
    text += f"    const std::shared_ptr<{of}> &shared() const noexcept {{ return shared_; }}\n"
    text += methods(headers, name) + (SUPPORTED if name == "session" else "")
    return text + f"\nprivate:\n    std::shared_ptr<{of}> shared_;\n}};\n"


def free_functions(headers, header):
    text = ""
    for f in headers.functions:
        if f.header != header or class_of(f)[0] or f.name in BY_HAND or made_by(f) or f.name.endswith("_destroy"):
            continue
        if f.returns != "tandem_status":
            text += f"inline {f.returns}{'' if f.returns.endswith('*') else ' '}{method_name(f)}("
            text += ", ".join(f"{p.type} {p.name}" for p in f.parameters)
            text += f")\n{{\n    return {f.name}({', '.join(p.name for p in f.parameters)});\n}}\n\n"
        else:
            text += Call(headers, f, 0).text(method_name(f), [], const="", indent="", static="inline ") + "\n"
    return text


def tandem_hpp(headers):
    text = SAYS.format(title="Tandem in C++17, without Vulkan: tandem/vulkan.hpp has that.", more=MORE) + PROLOGUE + "\n"
    text += free_functions(headers, "tandem.h")
    text += pointer_class(headers, "tandem_session", "session") + "\n"
    text += "\n".join(id_class(headers, of, name) for of, name in IDS.items()) + "\n"
    text += "\n".join(pointer_class(headers, of, name) for of, name in POINTERS.items() if name != "session")
    return text + "\n} // namespace tandem\n#endif\n"


def vulkan_hpp(headers):
    text = SAYS.format(title="Tandem in C++17 on a Vulkan device: what tandem/vulkan.h has beside tandem/tandem.h.",
                       more="Errors are as in tandem/tandem.hpp.")
    text += '#ifndef TANDEM_VULKAN_HPP\n#define TANDEM_VULKAN_HPP\n\n#include "tandem/tandem.hpp"\n#include "tandem/vulkan.h"\n\n'
    text += "namespace tandem {\n\n" + free_functions(headers, "vulkan.h")
    for f in headers.functions:
        if f.header != "vulkan.h" or not class_of(f)[0]:
            continue
        call = Call(headers, f, 1)
        for bool_ in (False, True)[:1 + call.may_be_busy]:
            text += call.text(f.name.removeprefix("tandem_"), ["on.get()"], ["const session &on"], const="", indent="", static="inline ",
                              bool_=bool_) + "\n"
    return text + "} // namespace tandem\n#endif\n"
