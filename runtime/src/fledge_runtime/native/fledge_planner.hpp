/* The planner for C++11 programs: a header over fledge_planner.h, with the same interface underneath.
 *
 *     fledge::Settings settings;
 *     settings.set("planner.margin_m", 0.43);          // throws fledge::Error
 *     fledge::Planner planner(settings);
 *     planner.reset();
 *     fledge_input input = {};
 *     input.state = state; ...
 *     planner.step(input, output);
 */
#ifndef FLEDGE_PLANNER_HPP
#define FLEDGE_PLANNER_HPP

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "fledge_planner.h"

namespace fledge {

/* An error of the planner; `status` is a fledge_status. */
class Error : public std::runtime_error {
public:
    Error(int status, const std::string &text) : std::runtime_error(text), status(status) {}
    int status;
};

class Settings {
public:
    Settings() { fledge_settings_default(&values); }

    Settings &set(const std::string &name, double value) {
        return check(fledge_settings_set(&values, name.c_str(), value, text, sizeof text));
    }
    Settings &choose(const std::string &name, const std::string &value) {
        return check(fledge_settings_choose(&values, name.c_str(), value.c_str(), text, sizeof text));
    }
    Settings &elevations(const std::vector<double> &degrees) {
        return check(fledge_settings_elevations(&values, degrees.data(), degrees.size(), text, sizeof text));
    }

    fledge_settings values;

private:
    Settings &check(int status) {
        if (status) throw Error(status, text);
        return *this;
    }
    char text[256] = "";
};

/* The planner of one drone. */
class Planner {
public:
    explicit Planner(const Settings &settings) : handle(create(settings), fledge_planner_destroy) {}

    void reset() { fledge_planner_reset(handle.get()); }
    std::size_t rays() const { return fledge_planner_rays(handle.get()); }
    void step(const fledge_input &input, fledge_output &output) {
        const int status = fledge_planner_step(handle.get(), &input, &output);
        if (status) throw Error(status, fledge_planner_error(handle.get()));
    }

private:
    static fledge_planner *create(const Settings &settings) {
        fledge_planner *planner = nullptr;
        char text[256] = "";
        const int status = fledge_planner_create(&settings.values, &planner, text, sizeof text);
        if (status) throw Error(status, text);
        return planner;
    }
    std::unique_ptr<fledge_planner, void (*)(fledge_planner *)> handle;
};

}  // namespace fledge

#endif
