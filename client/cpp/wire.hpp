// What travels between a server of fedspam and a client: frames, JSON headers, and arrays as safetensors.
// docs/wire.md describes all of it. Everything that arrives is checked; what is wrong throws Malformed.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers travel little-endian; swap bytes on this machine");

struct Malformed : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A number as one of another type. C++ leaves a cast undefined where the number does not fit.
template <typename T> T whole(double number) {
    constexpr double end = double(std::numeric_limits<T>::max() / 2 + 1) * 2;  // one more than the largest
    if (!(number >= double(std::numeric_limits<T>::min()) && number < end) || number != std::trunc(number))
        throw Malformed("a number is not whole, or too large for its type");
    return T(number);
}

// ---- JSON: as much of it as headers use ----

struct Json {
    enum Kind { Null, Bool, Number, Text, List, Object } kind = Null;
    double number = 0;  // also of a Bool
    std::string text;
    std::vector<Json> list;
    std::map<std::string, Json> object;

    bool has(const std::string& name) const { return object.count(name) > 0; }
    const Json& at(const std::string& name) const {
        auto found = object.find(name);
        if (found == object.end()) throw Malformed("the header has no " + name);
        return found->second;
    }
};

class JsonReader {
  public:
    explicit JsonReader(const std::string& data) : data(data) {}
    Json read() {
        Json value = any(0);
        space();
        if (place != data.size()) fail("something follows the value");
        return value;
    }

  private:
    const std::string& data;
    size_t place = 0;

    [[noreturn]] void fail(const std::string& why) { throw Malformed("no JSON: " + why); }
    void space() {
        while (place < data.size() && std::strchr(" \t\r\n", data[place])) place++;
    }
    char next() {
        space();
        if (place >= data.size()) fail("it ends too early");
        return data[place];
    }
    void expect(char mark) {
        if (next() != mark) fail(std::string("expected ") + mark);
        place++;
    }
    bool word(const char* expected) {
        if (data.compare(place, std::strlen(expected), expected) != 0) return false;
        place += std::strlen(expected);
        return true;
    }
    Json any(int depth) {
        if (depth > 20) fail("nested too deeply");
        Json value;
        char first = next();
        if (first == '{') {
            value.kind = Json::Object;
            place++;
            for (bool more = next() != '}'; more;) {
                std::string name = (next(), quoted());
                expect(':');
                value.object[name] = any(depth + 1);
                more = next() == ',';
                if (more) place++;
            }
            expect('}');
        } else if (first == '[') {
            value.kind = Json::List;
            place++;
            for (bool more = next() != ']'; more;) {
                value.list.push_back(any(depth + 1));
                more = next() == ',';
                if (more) place++;
            }
            expect(']');
        } else if (first == '"') {
            value.kind = Json::Text;
            value.text = quoted();
        } else if (word("true") || word("false")) {
            value.kind = Json::Bool;
            value.number = first == 't';
        } else if (!word("null")) {
            char* end = nullptr;
            value.kind = Json::Number;
            value.number = std::strtod(data.c_str() + place, &end);
            if (end == data.c_str() + place) fail("no value");
            place = end - data.c_str();
        }
        return value;
    }
    std::string quoted() {
        expect('"');
        std::string found;
        while (true) {
            if (place >= data.size()) fail("a text does not end");
            char mark = data[place++];
            if (mark == '"') return found;
            if (mark != '\\') {
                found += mark;
                continue;
            }
            if (place >= data.size()) fail("a text does not end");
            char escaped = data[place++];
            const char *marks = "\"\\/bfnrt", *means = "\"\\/\b\f\n\r\t";
            if (const char* which = std::strchr(marks, escaped); which && escaped) {
                found += means[which - marks];
            } else if (escaped == 'u' && place + 4 <= data.size()) {
                unsigned code = 0;
                for (int digit = 0; digit < 4; digit++) {
                    const char *digits = "0123456789abcdef0123456789ABCDEF", *which = std::strchr(digits, data[place++]);
                    if (!which || !*which) fail("an escape with digits that are not hexadecimal");
                    code = code * 16 + unsigned((which - digits) % 16);
                }
                if (code < 0x80) found += char(code);
                else if (code < 0x800) found += {char(0xC0 | code >> 6), char(0x80 | (code & 0x3F))};
                else found += {char(0xE0 | code >> 12), char(0x80 | (code >> 6 & 0x3F)), char(0x80 | (code & 0x3F))};
            } else {
                fail("an unknown escape");
            }
        }
    }
};

inline std::string quote(const std::string& text) {
    std::string found = "\"";
    for (unsigned char mark : text) {
        if (mark == '"' || mark == '\\') found += {'\\', char(mark)};
        else if (mark < 0x20) found += ' ';
        else found += char(mark);
    }
    return found + "\"";
}

// ---- safetensors: the length of the header, the header, the arrays end to end ----

using Vector = std::vector<double>;

struct Tensor {
    std::string dtype;           // F64, F32, U32, I64, I32 or BOOL
    std::vector<size_t> shape;   // empty for a number
    Vector values;               // doubles hold all of these exactly, but not every I64
};

struct Tensors {
    std::map<std::string, Tensor> arrays;
    std::map<std::string, std::string> notes;  // the __metadata__ of the file

    const Tensor& tensor(const std::string& name) const {
        auto found = arrays.find(name);
        if (found == arrays.end()) throw Malformed("there is no field " + name);
        return found->second;
    }
    const Vector& vector(const std::string& name) const { return tensor(name).values; }
    double number(const std::string& name) const {
        if (vector(name).size() != 1) throw Malformed(name + " is not one number");
        return vector(name)[0];
    }
};

template <typename T> Vector numbers(const char* data, size_t count) {
    Vector found(count);
    for (size_t i = 0; i < count; i++) {
        T value;
        std::memcpy(&value, data + i * sizeof(T), sizeof(T));
        found[i] = double(value);
    }
    return found;
}

// infinity where the number is too large for a float, as in IEEE 754
template <typename T> T narrowed(double value) {
    const double largest = std::numeric_limits<T>::max();
    if (std::abs(value) > largest && std::isfinite(value)) return T(std::copysign(HUGE_VAL, value));
    return T(value);
}

template <typename T> void append(std::string& data, const Vector& values) {
    for (double value : values) {
        T narrow;
        if constexpr (std::is_floating_point_v<T>) narrow = narrowed<T>(value);
        else narrow = whole<T>(value);
        data.append(reinterpret_cast<const char*>(&narrow), sizeof(T));
    }
}

struct Layout {
    size_t bytes;
    Vector (*read)(const char*, size_t);
    void (*write)(std::string&, const Vector&);
};

inline const Layout& layout(const std::string& dtype) {
    static const std::map<std::string, Layout> known = {
        {"F64", {8, numbers<double>, append<double>}},     {"F32", {4, numbers<float>, append<float>}},
        {"U32", {4, numbers<uint32_t>, append<uint32_t>}}, {"I64", {8, numbers<int64_t>, append<int64_t>}},
        {"I32", {4, numbers<int32_t>, append<int32_t>}},   {"BOOL", {1, numbers<uint8_t>, append<uint8_t>}},
    };
    auto found = known.find(dtype);
    if (found == known.end()) throw Malformed("arrays of " + dtype + " are not known here");
    return found->second;
}

inline Tensors decode(const std::string& data) {
    uint64_t length;
    if (data.size() < 8) throw Malformed("too few bytes for the length of a header");
    std::memcpy(&length, data.data(), 8);
    if (length > data.size() - 8) throw Malformed("a header that is longer than the data");
    const std::string header = data.substr(8, length);
    const size_t begin = 8 + length, size = data.size() - begin;
    Tensors found;
    for (auto& [name, entry] : JsonReader(header).read().object) {
        if (name == "__metadata__") {
            for (auto& [key, value] : entry.object) found.notes[key] = value.text;
            continue;
        }
        Tensor tensor{entry.at("dtype").text, {}, {}};
        size_t count = 1;
        for (auto& axis : entry.at("shape").list) {
            tensor.shape.push_back(whole<size_t>(axis.number));
            if (tensor.shape.back() > size || count * tensor.shape.back() > size)
                throw Malformed(name + " has a shape that is larger than the data");
            count *= tensor.shape.back();
        }
        auto& places = entry.at("data_offsets").list;
        const Layout& made = layout(tensor.dtype);
        if (places.size() != 2 || places[0].number < 0 || places[1].number > double(size) ||
            places[1].number - places[0].number != double(count * made.bytes))
            throw Malformed(name + " lies outside of the data, or has another size than its shape");
        tensor.values = made.read(data.data() + begin + whole<size_t>(places[0].number), count);
        found.arrays[name] = tensor;
    }
    return found;
}

inline std::string encode(const Tensors& tensors) {
    std::string body, header = "{";
    if (!tensors.notes.empty()) {
        header += "\"__metadata__\":{";
        for (auto& [name, text] : tensors.notes) header += quote(name) + ":" + quote(text) + ",";
        header.back() = '}';
        header += ",";
    }
    for (auto& [name, tensor] : tensors.arrays) {
        size_t begin = body.size();
        layout(tensor.dtype).write(body, tensor.values);
        header += quote(name) + ":{\"dtype\":" + quote(tensor.dtype) + ",\"shape\":[";
        for (size_t axis : tensor.shape) header += std::to_string(axis) + ",";
        if (!tensor.shape.empty()) header.pop_back();
        header += "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(body.size()) + "]},";
    }
    if (header.size() > 1) header.pop_back();
    header += "}";
    header.append((8 - header.size() % 8) % 8, ' ');
    uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header + body;
}

// ---- frames: eight bytes with a length, and so many bytes ----

inline std::string read_frame(std::istream& in) {
    uint64_t length;
    if (!in.read(reinterpret_cast<char*>(&length), 8) || length > (uint64_t(1) << 34)) throw Malformed("no frame");
    std::string data(length, '\0');
    if (!in.read(data.data(), std::streamsize(length))) throw Malformed("a frame that is too short");
    return data;
}

inline void write_frame(std::ostream& out, const std::string& data) {
    uint64_t length = data.size();
    out.write(reinterpret_cast<const char*>(&length), 8).write(data.data(), std::streamsize(length));
}
