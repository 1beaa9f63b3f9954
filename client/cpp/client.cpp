// A client of a fedspam federation in C++, without any library: SPAM-PP, auto, FedAvg and SCAFFOLD on a linear model.
//
//     g++ -O2 -std=c++17 -o client client.cpp
//     client --rows rows.safetensors --schema DIGEST=spam_pp --schema DIGEST=auto --steps 5 --rate 0.1
//
// It answers one message: three frames on its input (header, fields, its own state), three on its output. The ClientApp
// of fedspam_client.relay passes these bytes; docs/wire.md describes them. The file of rows has float arrays
// client-<id>.features and client-<id>.label. The model is x in R^d, and the loss of a client is
//
//     f(x) = mean_j l(<a_j, x>, y_j) + regularization/2 |x|^2,    l logistic (labels -1 and 1) or squared/2 (ridge).
//
// The prox takes `steps` gradient steps of length `rate`: GradientDescent(steps, local_rate=rate, safeguard=False).

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "wire.hpp"

// ---- vectors ----

Vector axpy(double factor, const Vector& a, const Vector& b) {  // factor a + b
    Vector sum(b);
    if (a.size() != b.size()) throw Malformed("two fields that are added have different sizes");
    for (size_t i = 0; i < a.size(); i++) sum[i] += factor * a[i];
    return sum;
}
Vector minus(const Vector& a, const Vector& b) { return axpy(-1, b, a); }
double dot(const Vector& a, const Vector& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); i++) sum += a[i] * b[i];
    return sum;
}
double norm(const Vector& a) { return std::sqrt(dot(a, a)); }

// ---- the loss ----

struct Point {
    double value;
    Vector gradient;
};

struct Loss {
    Vector features, labels;
    size_t dimension;
    bool logistic;
    double regularization;

    Point at(const Vector& x) const {
        if (x.size() != dimension) throw Malformed("x has another size than the rows of this client");
        Point found{0.5 * regularization * dot(x, x), axpy(regularization, x, Vector(dimension, 0))};
        for (size_t j = 0; j < labels.size(); j++) {
            const double* row = features.data() + j * dimension;
            double score = 0;
            for (size_t i = 0; i < dimension; i++) score += row[i] * x[i];
            double margin = labels[j] * score, off = score - labels[j];
            double loss = logistic ? std::max(-margin, 0.0) + std::log1p(std::exp(-std::abs(margin))) : 0.5 * off * off;
            double slope = logistic ? -labels[j] / (1 + std::exp(margin)) : off;
            found.value += loss / labels.size();
            for (size_t i = 0; i < dimension; i++) found.gradient[i] += slope * row[i] / labels.size();
        }
        return found;
    }
};

// ---- random numbers: threefry2x32 with 20 rounds, as JAX uses it ----

struct Words {
    uint32_t high, low;
};

Words threefry(Words key, Words counter) {
    const int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const uint32_t schedule[3] = {key.high, key.low, key.high ^ key.low ^ 0x1BD11BDA};
    uint32_t a = counter.high + key.high, b = counter.low + key.low;
    for (uint32_t group = 0; group < 5; group++) {
        for (int rotation : rotations[group % 2]) {
            a += b;
            b = (b << rotation | b >> (32 - rotation)) ^ a;
        }
        a += schedule[(group + 1) % 3];
        b += schedule[(group + 2) % 3] + group + 1;
    }
    return {a, b};
}

// 16 projections of a vector: random signs, summed into buckets (docs/wire.md, sketches)
Vector sketch(const Vector& v, const Vector& seed) {
    Vector sums(16, 0);
    for (size_t i = 0; i < v.size(); i++) {
        Words bits = threefry({whole<uint32_t>(seed.at(0)), whole<uint32_t>(seed.at(1))}, {uint32_t(uint64_t(i) >> 32), uint32_t(i)});
        sums[i % 16] += (bits.high ^ bits.low) & 1 ? v[i] : -v[i];
    }
    return sums;
}

// ---- the works of the methods ----

struct Settings {
    int steps = 5;
    double rate = 0.1;
    int local_steps = 2;
};

struct Work {
    const Loss& loss;
    const Settings& settings;
    const Tensors& fields;  // of the message, and those that the client holds
    Tensors& state;
    const Json& header;
    Tensors reply;

    std::string dtype() const { return fields.tensor("x").dtype; }
    double epsilon() const { return dtype() == "F32" ? 0x1p-23 : 0x1p-52; }
    double largest() const {
        return dtype() == "F32" ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max();
    }
    void send(const std::string& name, const Vector& values) { reply.arrays[name] = {dtype(), {values.size()}, values}; }
    void send(const std::string& name, double value) { reply.arrays[name] = {dtype(), {}, {value}}; }
    void send_moments(const std::string& name, const Vector& sums) {
        Vector squares(sums);
        for (double& number : squares) number *= number;
        send(name + ".first", sums);
        send(name + ".second", squares);
    }

    void starting_gradient() { send("reply", loss.at(fields.vector("x")).gradient); }

    void difference() {  // grad f(x) - (1 - p) grad f(x_prev)
        Point here = loss.at(fields.vector("x")), there = loss.at(fields.vector("x_prev"));
        send("reply", axpy(fields.number("fresh_weight") - 1, there.gradient, here.gradient));
    }

    struct Answer {
        Vector y;
        double decrease, distance, step_size;
    };

    // gradient steps on phi(y) = f(y) + <g - grad f(x), y - x> + |y - x|^2/(2 gamma), with their certificate
    Answer solve(const Vector& x, const Vector& g, double gamma) {
        Point start = loss.at(x);
        auto slope_of = [&](const Point& point, const Vector& y) {
            return axpy(1 / gamma, minus(y, x), axpy(1, g, minus(point.gradient, start.gradient)));
        };
        Vector y = x, slope = g;
        Point end = start;
        for (int j = 0; j < settings.steps; j++) {
            y = axpy(-settings.rate, slope, y);
            end = loss.at(y);
            slope = slope_of(end, y);
        }
        Vector step = minus(y, x);
        double distance = norm(step), stationarity = norm(slope), size = std::abs(start.value) + std::abs(end.value);
        double decrease = end.value - start.value;
        for (size_t i = 0; i < x.size(); i++) {  // phi without f is quadratic: its slope in the middle, times the step
            double pull = g[i] - start.gradient[i] + step[i] / (2 * gamma);
            decrease += pull * step[i];
            size += std::abs(pull * step[i]);
        }
        // where rounding of the losses could hide the change, it comes from the gradients, by the trapezoid rule
        double doubt = std::pow(epsilon(), 2.0 / 3) * size, trapezoid = 0.5 * (dot(g, step) + dot(slope, step));
        if (std::abs(decrease) <= doubt) decrease = std::clamp(trapezoid, decrease - doubt, decrease + doubt);
        bool certified = decrease <= 0 && stationarity <= std::sqrt(3.0) / 4 * distance / gamma;
        const std::string name = "reply.certificate.";
        send("reply.x", y);
        send(name + "decrease", decrease);
        send(name + "stationarity", stationarity);
        send(name + "distance", distance);
        send(name + "step_size", gamma);
        send(name + "steps", settings.steps);
        send(name + "gradients", settings.steps + 1);
        send(name + "certified", certified);
        return {y, decrease, distance, gamma};
    }

    void prox() { solve(fields.vector("x"), fields.vector("g"), fields.number("step_size")); }

    void auto_begin() {
        Point here = loss.at(fields.vector("x"));
        send("reply.g", here.gradient);
        send_moments("reply.fresh", sketch(here.gradient, fields.vector("seed")));
        send("reply.sampled", 0.0);  // this client never draws minibatches
    }

    void auto_difference() {
        const Vector &x = fields.vector("x"), &x_prev = fields.vector("x_prev"), &seed = fields.vector("seed");
        double p = fields.number("fresh_weight");
        Point a = loss.at(x), b = loss.at(x_prev);
        Vector step = minus(x, x_prev);
        double slope = dot(b.gradient, step), bend = a.value - b.value - slope;
        double doubt = std::pow(epsilon(), 2.0 / 3) * (std::abs(a.value) + std::abs(b.value));
        if (std::abs(bend) < doubt) bend = 0.5 * dot(minus(a.gradient, b.gradient), step);
        if (!std::isfinite(bend) || !std::isfinite(dot(a.gradient, a.gradient))) {
            bend = std::pow(largest(), 0.4);  // so the server takes the step back
            a = b;
        }
        Vector of_a = sketch(a.gradient, seed), of_b = sketch(b.gradient, seed);
        send("reply.c", axpy(p - 1, b.gradient, a.gradient));
        send_moments("reply.fresh", of_a);
        send_moments("reply.change", minus(of_a, of_b));
        send_moments("reply.sent", axpy(p - 1, of_b, of_a));
        send("reply.slope", slope);
        send("reply.bend", bend);
    }

    void auto_prox() {
        const Vector& x = fields.vector(fields.number("back") != 0 ? "x_prev" : "x");
        Answer answer = solve(x, fields.vector("g"), fields.number("step_size"));
        send("reply.promise", answer.decrease - answer.distance * answer.distance / (2 * answer.step_size));
        send("reply.rate", std::log(fields.number("rate")));
    }

    Vector descend(const Vector& shift) {
        Vector y = fields.vector("x");
        for (int j = 0; j < settings.local_steps; j++)
            y = axpy(-fields.number("local_rate"), axpy(1, shift, loss.at(y).gradient), y);
        return y;
    }

    void fedavg() {
        const Vector& x = fields.vector("x");
        send("reply.moved", minus(descend(Vector(x.size(), 0)), x));
    }

    void scaffold() {  // the memory c; the header says which version of it, and what the new version is called
        const Vector &x = fields.vector("x"), &control = fields.vector("control");
        auto version = [&](const char* which) {
            return "memory." + header.at("run").text + "." + std::to_string(whole<int64_t>(header.at(which).number));
        };
        Vector c(x.size(), 0);
        if (header.at("memory").number != 0) {
            if (!state.arrays.count(version("memory"))) throw Malformed("this client has lost its memory");
            c = state.vector(version("memory"));
        }
        Vector moved = minus(descend(minus(control, c)), x);
        Vector after = axpy(-1 / (settings.local_steps * fields.number("local_rate")), moved, minus(c, control));
        for (auto entry = state.arrays.begin(); entry != state.arrays.end();) {
            bool old = entry->first.rfind("memory.", 0) == 0 && entry->first != version("memory") &&
                       entry->first != version("settled");
            entry = old ? state.arrays.erase(entry) : std::next(entry);
        }
        state.arrays[version("becomes")] = {dtype(), {after.size()}, after};
        send("reply.moved", moved);
    }
};

const std::map<std::string, std::map<std::string, void (Work::*)()>> METHODS = {
    {"spam_pp",
     {{"starting_gradient", &Work::starting_gradient}, {"difference", &Work::difference}, {"prox", &Work::prox}}},
    {"auto", {{"begin", &Work::auto_begin}, {"difference", &Work::auto_difference}, {"prox", &Work::auto_prox}}},
    {"fedavg", {{"train", &Work::fedavg}}},
    {"scaffold", {{"train", &Work::scaffold}}},
};

// ---- one message ----

struct Options {
    std::string rows;
    bool logistic = true;
    double regularization = 0;
    Settings settings;
    std::map<std::string, std::string> methods;  // schema -> name
};

Loss load(const Options& options, int64_t id) {
    std::ifstream file(options.rows, std::ios::binary);
    std::stringstream data;
    data << file.rdbuf();
    if (!file) throw Malformed("cannot read " + options.rows);
    Tensors rows = decode(data.str());
    const std::string name = "client-" + std::to_string(id) + ".";
    const Tensor& features = rows.tensor(name + "features");
    if (features.shape.size() != 2 || rows.vector(name + "label").size() != features.shape[0])
        throw Malformed("features must be a matrix with one row per label");
    return {features.values, rows.vector(name + "label"), features.shape[1], options.logistic, options.regularization};
}

struct Reply {
    std::string header, fields;
};

Reply answer(const Options& options, const Json& header, const std::string& data, Tensors& state) {
    auto method = options.methods.find(header.at("schema").text);
    if (method == options.methods.end()) throw Malformed("this client does not have the schema of the message");
    const std::string facts = "\"partition-id\":" + std::to_string(whole<int64_t>(header.at("partition-id").number)) +
                              ",\"num-partitions\":" + std::to_string(whole<int64_t>(header.at("num-partitions").number)) +
                              ",\"fedspam\":\"C++\"";
    if (header.at("type").text == "query.whoami")
        return {"{" + facts + ",\"schema\":" + quote(method->first) + "}", ""};

    const std::string label = header.at("exchange").text;
    auto work = METHODS.at(method->second).find(label);
    if (work == METHODS.at(method->second).end() || header.at("type").text != "train." + label)
        throw Malformed("the method has no exchange " + label);
    Tensors sent = decode(data);
    const bool assigned = header.has("assigned") && header.at("assigned").number != 0;
    if (!assigned && sent.number("@client") != header.at("partition-id").number)
        throw Malformed("the message is for another client");

    // fields that were sent earlier in the round are not sent again
    const std::string round = header.at("run").text + " " + std::to_string(whole<int64_t>(sent.number("@round")));
    const bool same = state.notes["round"] == round;
    Tensors fields = sent;
    for (auto entry = state.arrays.begin(); entry != state.arrays.end();) {
        const bool held = entry->first.rfind("held.", 0) == 0;
        if (held && same) fields.arrays.insert({entry->first.substr(5), entry->second});
        entry = held ? state.arrays.erase(entry) : std::next(entry);
    }
    state.notes["round"] = round;
    for (auto& [name, tensor] : fields.arrays)
        if (name[0] != '@') state.arrays["held." + name] = tensor;

    const Loss loss = load(options, whole<int64_t>(header.at("partition-id").number));
    Work doing{loss, options.settings, fields, state, header, {}};
    (doing.*work->second)();
    doing.reply.arrays["@client"] = sent.tensor("@client");
    doing.reply.arrays["@round"] = sent.tensor("@round");
    return {"{\"schema\":" + quote(method->first) + ",\"exchange\":" + quote(label) + (assigned ? "," + facts : "") + "}",
            encode(doing.reply)};
}

Options parsed(int count, char** words) {
    Options options;
    for (int i = 1; i + 1 < count; i += 2) {
        const std::string name = words[i], value = words[i + 1];
        const size_t equals = value.find('=');
        if (name == "--rows") options.rows = value;
        else if (name == "--loss") options.logistic = value != "ridge";
        else if (name == "--regularization") options.regularization = std::stod(value);
        else if (name == "--steps") options.settings.steps = std::stoi(value);
        else if (name == "--rate") options.settings.rate = std::stod(value);
        else if (name == "--local-steps") options.settings.local_steps = std::stoi(value);
        else if (name == "--schema" && equals != std::string::npos && METHODS.count(value.substr(equals + 1)))
            options.methods[value.substr(0, equals)] = value.substr(equals + 1);
        else throw Malformed("the option " + name + " " + value + " is unknown");
    }
    return options;
}

int main(int count, char** words) {
    std::ios::sync_with_stdio(false);
    try {
        const Options options = parsed(count, words);
        const std::string header = read_frame(std::cin), fields = read_frame(std::cin), before = read_frame(std::cin);
        Reply reply;
        std::string after = before;
        try {
            Tensors state = before.empty() ? Tensors{} : decode(before);
            reply = answer(options, JsonReader(header).read(), fields, state);
            after = encode(state);
        } catch (const std::exception& error) {
            reply = {"{\"refused\":" + quote(error.what()) + "}", ""};
        }
        write_frame(std::cout, reply.header);
        write_frame(std::cout, reply.fields);
        write_frame(std::cout, after);
        return std::cout.flush() ? 0 : 1;
    } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
        return 2;
    }
}
