// libtorch's own profiler, which torch-sys does not wrap. `profile.rs` has the Rust side.

#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "shim.h"

namespace {

using namespace torch::autograd::profiler;
using engine_tch::done, engine_tch::guarded;

struct Event {
    std::string name;
    bool is_mark;
    uint64_t start_ns, duration_ns, thread;
};

using Events = std::vector<Event>;

}  // namespace

extern "C" {

// Profiles this thread until the profile ends.
bool engine_tch_profile_begin() {
    return done([] {
        const std::set<ActivityType> activities{ActivityType::CPU};
        const ProfilerConfig config(ProfilerState::KINETO);
        prepareProfiler(config, activities);
        enableProfiler(config, activities);
    });
}

Events* engine_tch_profile_end() {
    return guarded([] {
        const auto told = disableProfiler();
        Events events;
        events.reserve(told->events().size());
        for (const auto& event : told->events()) {
            const bool is_mark = event.scope() == static_cast<uint8_t>(at::RecordScope::USER_SCOPE);
            events.push_back({event.name(), is_mark, event.startNs(), event.durationNs(), event.startThreadId()});
        }
        return events;
    });
}

size_t engine_tch_profile_count(const Events* events) { return events->size(); }

// Returns the name of event `index`, valid until the events are freed. Writes to `figures` its start since
// 1970, its duration, its thread, and whether it is a mark.
const char* engine_tch_profile_event(const Events* events, size_t index, uint64_t* figures) {
    const Event& event = (*events)[index];
    figures[0] = event.start_ns;
    figures[1] = event.duration_ns;
    figures[2] = event.thread;
    figures[3] = event.is_mark;
    return event.name.c_str();
}

void engine_tch_profile_free(Events* events) { delete events; }

// Marks everything that runs until the mark ends. Marks must end in reverse order. Without room for it, marks nothing.
at::RecordFunction* engine_tch_mark_begin(const char* name) {
    at::RecordFunction* mark = nullptr;
    done([&] {
        mark = new at::RecordFunction(at::RecordScope::USER_SCOPE);
        if (mark->isActive()) {
            mark->before(std::string(name));
        }
    });
    return mark;
}

void engine_tch_mark_end(at::RecordFunction* mark) { delete mark; }

}  // extern "C"
