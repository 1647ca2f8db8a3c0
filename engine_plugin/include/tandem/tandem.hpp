/* Tandem in C++17, without Vulkan: tandem/vulkan.hpp has that.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Made by engine_plugin/bindings/generate.py from the headers of C, which say what each function does, who owns what, which
 * thread may call, and whether it blocks: that is the same here. What fails throws tandem::error, with the library's text; what is
 * not there yet throws tandem::busy, but for try_NAME(), which then returns false or nothing. Objects are moved, never copied;
 * each keeps alive what it was made on, so the order in which they go does not matter. The engine's own device, and memory that it
 * has lent, must outlive them all: a session ends with the last of its objects.
 *
 *     tandem::session session;
 *     auto desc = tandem::make<tandem_mem_desc>();
 *     desc.bytes = 4096;
 *     tandem::mem mem(session, desc);
 *     float *host = static_cast<float *>(mem.host());
 */
#ifndef TANDEM_TANDEM_HPP
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

inline uint32_t version()
{
    return tandem_version();
}

inline const char *status_text(tandem_status status)
{
    return tandem_status_text(status);
}

inline std::vector<tandem_device> devices()
{
    return fetch<tandem_device>(
        [&](std::uint32_t *count, tandem_device *list) { return tandem_devices(count, list); });
}

class session {
public:
    explicit session(const tandem_session_desc &desc = make<tandem_session_desc>())
    {
        tandem_session *made = nullptr;

        check(tandem_session_create(&desc, &made));
        shared_ = std::shared_ptr<tandem_session>(made, [](tandem_session *last) { tandem_session_destroy(&last); });
    }
    session(session &&) = default;
    session &operator=(session &&) = default;
    tandem_session *get() const noexcept { return shared_.get(); }
    const std::shared_ptr<tandem_session> &shared() const noexcept { return shared_; }
    tandem_info info() const
    {
        tandem_info info = make<tandem_info>();

        check(tandem_session_info(get(), &info));
        return info;
    }
    int point_fd(tandem_point point) const
    {
        int fd{};

        check(tandem_point_fd(get(), point, &fd));
        return fd;
    }
    void point_wait(tandem_point point, std::uint64_t timeout_ns) const
    {
        check(tandem_point_wait(get(), point, timeout_ns));
    }
    bool try_point_wait(tandem_point point, std::uint64_t timeout_ns) const
    {
        return check_busy(tandem_point_wait(get(), point, timeout_ns));
    }
    tandem_ticket submit(const tandem_job &job) const
    {
        tandem_ticket ticket{};

        check(tandem_submit(get(), &job, &ticket));
        return ticket;
    }
    std::optional<tandem_ticket> try_submit(const tandem_job &job) const
    {
        tandem_ticket ticket{};

        if (!check_busy(tandem_submit(get(), &job, &ticket)))
            return std::nullopt;
        return ticket;
    }
    tandem_job_report poll(tandem_ticket ticket) const
    {
        tandem_job_report report = make<tandem_job_report>();

        check(tandem_poll(get(), ticket, &report));
        return report;
    }
    tandem_job_report wait(tandem_ticket ticket, std::uint64_t timeout_ns) const
    {
        tandem_job_report report = make<tandem_job_report>();

        check(tandem_wait(get(), ticket, timeout_ns, &report));
        return report;
    }
    std::optional<tandem_job_report> try_wait(tandem_ticket ticket, std::uint64_t timeout_ns) const
    {
        tandem_job_report report = make<tandem_job_report>();

        if (!check_busy(tandem_wait(get(), ticket, timeout_ns, &report)))
            return std::nullopt;
        return report;
    }
    void cancel(tandem_ticket ticket) const
    {
        check(tandem_cancel(get(), ticket));
    }
    bool try_cancel(tandem_ticket ticket) const
    {
        return check_busy(tandem_cancel(get(), ticket));
    }
    support supported(const tandem_job &job) const
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

private:
    std::shared_ptr<tandem_session> shared_;
};

class mem : public owned<tandem_mem, tandem_mem_destroy> {
public:
    mem() = default;
    mem(const session &on, const tandem_mem_desc &desc) : owned(on.shared())
    {
        check(tandem_mem_create(session_.get(), &desc, &id_));
    }
    void *host() const
    {
        void *host{};

        check(tandem_mem_host(session_.get(), id_, &host));
        return host;
    }
};

class timeline : public owned<tandem_timeline, tandem_timeline_destroy> {
public:
    timeline() = default;
    timeline(const session &on, const tandem_timeline_desc &desc) : owned(on.shared())
    {
        check(tandem_timeline_create(session_.get(), &desc, &id_));
    }
    std::uint64_t value() const
    {
        std::uint64_t value{};

        check(tandem_timeline_value(session_.get(), id_, &value));
        return value;
    }
    void signal(std::uint64_t value) const
    {
        check(tandem_timeline_signal(session_.get(), id_, value));
    }
    void submitted(std::uint64_t value) const
    {
        check(tandem_timeline_submitted(session_.get(), id_, value));
    }
};

class model : public owned<tandem_model, tandem_model_destroy> {
    friend class instance;

public:
    model() = default;
    model(const session &on, const tandem_model_desc &desc) : owned(on.shared())
    {
        check(tandem_model_create(session_.get(), &desc, &id_));
    }
    model(const session &on, const char *path) : owned(on.shared())
    {
        check(tandem_model_load(session_.get(), path, &id_));
    }
    std::tuple<tandem_view, std::array<std::uint64_t, 4>> tensor(const char *name) const
    {
        tandem_view view{};
        std::array<std::uint64_t, 4> shape{};

        check(tandem_model_tensor(session_.get(), id_, name, &view, shape.data()));
        return {view, shape};
    }
    tandem_network info() const
    {
        tandem_network network = make<tandem_network>();

        check(tandem_model_info(session_.get(), id_, &network));
        return network;
    }
    tandem_network_number number(std::uint32_t index) const
    {
        tandem_network_number number = make<tandem_network_number>();

        check(tandem_model_number(session_.get(), id_, index, &number));
        return number;
    }
    tandem_network_tensor binding(list<std::uint32_t> numbers, std::uint32_t index) const
    {
        tandem_network_tensor tensor = make<tandem_network_tensor>();

        check(tandem_model_binding(session_.get(), id_, numbers.data(), numbers.size(), index, &tensor));
        return tensor;
    }
    tandem_network_tensor uniform(list<std::uint32_t> numbers, std::uint32_t index) const
    {
        tandem_network_tensor tensor = make<tandem_network_tensor>();

        check(tandem_model_uniform(session_.get(), id_, numbers.data(), numbers.size(), index, &tensor));
        return tensor;
    }
};

class instance : public owned<tandem_instance, tandem_instance_destroy> {
public:
    instance() = default;
    instance(const model &on, const tandem_instance_desc &desc = make<tandem_instance_desc>()) : owned(on.session_)
    {
        check(tandem_model_instance(session_.get(), on.id(), &desc, &id_));
    }
    void prepare(list<std::uint32_t> numbers = {}) const
    {
        check(tandem_model_prepare(session_.get(), id_, numbers.data(), numbers.size()));
    }
    bool try_prepare(list<std::uint32_t> numbers = {}) const
    {
        return check_busy(tandem_model_prepare(session_.get(), id_, numbers.data(), numbers.size()));
    }
    tandem_prepared prepared(list<std::uint32_t> numbers) const
    {
        tandem_prepared prepared = make<tandem_prepared>();

        check(tandem_model_prepared(session_.get(), id_, numbers.data(), numbers.size(), &prepared));
        return prepared;
    }
    tandem_layer layer(list<std::uint32_t> numbers, std::uint32_t index) const
    {
        tandem_layer layer = make<tandem_layer>();

        check(tandem_model_layer(session_.get(), id_, numbers.data(), numbers.size(), index, &layer));
        return layer;
    }
};

class language {
public:
    language(const session &on, const tandem_language_desc &desc)
    {
        tandem_language *made = nullptr;

        check(tandem_language_create(on.get(), &desc, &made));
        shared_ = std::shared_ptr<tandem_language>(made, [kept = on.shared()](tandem_language *last) { tandem_language_destroy(&last); });
    }
    language(language &&) = default;
    language &operator=(language &&) = default;
    tandem_language *get() const noexcept { return shared_.get(); }
    const std::shared_ptr<tandem_language> &shared() const noexcept { return shared_; }
    tandem_language_info get_info() const
    {
        tandem_language_info info = make<tandem_language_info>();

        check(tandem_language_get_info(get(), &info));
        return info;
    }
    tandem_language_spent frame(std::uint32_t budget_us) const
    {
        tandem_language_spent spent = make<tandem_language_spent>();

        check(tandem_language_frame(get(), budget_us, &spent));
        return spent;
    }

private:
    std::shared_ptr<tandem_language> shared_;
};

class npc {
public:
    npc(const language &on, const tandem_npc_desc &desc)
    {
        tandem_npc *made = nullptr;

        check(tandem_npc_create(on.get(), &desc, &made));
        shared_ = std::shared_ptr<tandem_npc>(made, [kept = on.shared()](tandem_npc *last) { tandem_npc_destroy(&last); });
    }
    npc(npc &&) = default;
    npc &operator=(npc &&) = default;
    tandem_npc *get() const noexcept { return shared_.get(); }
    const std::shared_ptr<tandem_npc> &shared() const noexcept { return shared_; }
    void say(const tandem_say &say) const
    {
        check(tandem_npc_say(get(), &say));
    }
    bool try_say(const tandem_say &say) const
    {
        return check_busy(tandem_npc_say(get(), &say));
    }
    tandem_npc_news poll() const
    {
        tandem_npc_news news = make<tandem_npc_news>();

        check(tandem_npc_poll(get(), &news));
        return news;
    }
    tandem_npc_news wait(std::uint64_t timeout_ns) const
    {
        tandem_npc_news news = make<tandem_npc_news>();

        check(tandem_npc_wait(get(), timeout_ns, &news));
        return news;
    }
    std::optional<tandem_npc_news> try_wait(std::uint64_t timeout_ns) const
    {
        tandem_npc_news news = make<tandem_npc_news>();

        if (!check_busy(tandem_npc_wait(get(), timeout_ns, &news)))
            return std::nullopt;
        return news;
    }
    void cancel() const
    {
        check(tandem_npc_cancel(get()));
    }
    tandem_npc_reply get_reply(std::uint32_t index) const
    {
        tandem_npc_reply reply = make<tandem_npc_reply>();

        check(tandem_npc_get_reply(get(), index, &reply));
        return reply;
    }
    tandem_npc_token get_token(std::uint32_t reply, std::uint32_t index) const
    {
        tandem_npc_token token = make<tandem_npc_token>();

        check(tandem_npc_get_token(get(), reply, index, &token));
        return token;
    }
    void choose(std::uint32_t index) const
    {
        check(tandem_npc_choose(get(), index));
    }
    bool try_choose(std::uint32_t index) const
    {
        return check_busy(tandem_npc_choose(get(), index));
    }
    void set_history(list<tandem_turn> turns) const
    {
        check(tandem_npc_set_history(get(), turns.data(), turns.size()));
    }
    bool try_set_history(list<tandem_turn> turns) const
    {
        return check_busy(tandem_npc_set_history(get(), turns.data(), turns.size()));
    }
    std::vector<tandem_turn> get_history() const
    {
        return fetch<tandem_turn>(
            [&](std::uint32_t *count, tandem_turn *list) { return tandem_npc_get_history(get(), count, list); });
    }
    std::vector<unsigned char> save() const
    {
        return fetch_bytes([&](void *to, std::uint64_t *bytes) { return tandem_npc_save(get(), to, bytes); });
    }
    void restore(list<unsigned char> from) const
    {
        check(tandem_npc_restore(get(), from.data(), from.bytes()));
    }
    bool try_restore(list<unsigned char> from) const
    {
        return check_busy(tandem_npc_restore(get(), from.data(), from.bytes()));
    }

private:
    std::shared_ptr<tandem_npc> shared_;
};

class embedder {
public:
    embedder(const language &on, const tandem_embedder_desc &desc)
    {
        tandem_embedder *made = nullptr;

        check(tandem_embedder_create(on.get(), &desc, &made));
        shared_ = std::shared_ptr<tandem_embedder>(made, [kept = on.shared()](tandem_embedder *last) { tandem_embedder_destroy(&last); });
    }
    embedder(embedder &&) = default;
    embedder &operator=(embedder &&) = default;
    tandem_embedder *get() const noexcept { return shared_.get(); }
    const std::shared_ptr<tandem_embedder> &shared() const noexcept { return shared_; }
    void begin(const char *text) const
    {
        check(tandem_embedder_begin(get(), text));
    }
    tandem_embedding poll() const
    {
        tandem_embedding embedding = make<tandem_embedding>();

        check(tandem_embedder_poll(get(), &embedding));
        return embedding;
    }
    tandem_embedding wait(std::uint64_t timeout_ns) const
    {
        tandem_embedding embedding = make<tandem_embedding>();

        check(tandem_embedder_wait(get(), timeout_ns, &embedding));
        return embedding;
    }
    std::optional<tandem_embedding> try_wait(std::uint64_t timeout_ns) const
    {
        tandem_embedding embedding = make<tandem_embedding>();

        if (!check_busy(tandem_embedder_wait(get(), timeout_ns, &embedding)))
            return std::nullopt;
        return embedding;
    }

private:
    std::shared_ptr<tandem_embedder> shared_;
};

} // namespace tandem
#endif
