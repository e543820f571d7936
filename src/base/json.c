#ifndef DML_BASE_JSON_C
#define DML_BASE_JSON_C

#include "base/json.h"

#include <stdio.h>
#include <string.h>

/* The bytes of the UTF-8 character at `at`, 0 if there is none before `end`. */
static size_t dml__utf8_length(const char *at, const char *end)
{
    const unsigned char *b = (const unsigned char *)at;
    const size_t left = (size_t)(end - at);
    if (left == 0) return 0;
    if (b[0] < 0x80) return 1;
    const size_t length = b[0] >= 0xc2 && b[0] < 0xe0 ? 2 : (b[0] & 0xf0) == 0xe0 ? 3 : b[0] < 0xf5 ? 4 : 0;
    if (b[0] < 0xc2 || length == 0 || left < length) return 0;
    for (size_t i = 1; i < length; i++)
        if ((b[i] & 0xc0) != 0x80) return 0;
    if (b[0] == 0xe0 && b[1] < 0xa0) return 0;  /* longer than need be */
    if (b[0] == 0xed && b[1] >= 0xa0) return 0; /* half of a pair of UTF-16 */
    if (b[0] == 0xf0 && b[1] < 0x90) return 0;  /* longer than need be */
    if (b[0] == 0xf4 && b[1] >= 0x90) return 0; /* beyond U+10FFFF */
    return length;
}

DML__LOCAL bool dml__is_utf8(const char *text)
{
    const char *end = text + strlen(text);
    while (text < end) {
        const size_t length = dml__utf8_length(text, end);
        if (!length) return false;
        text += length;
    }
    return true;
}

DML__LOCAL const char *dml__shown(const char *text, size_t bytes, char to[DML__SHOWN_BYTES])
{
    const char *end = text + bytes;
    size_t done = 0;
    while (text < end) {
        const size_t length = dml__utf8_length(text, end);
        const unsigned char first = (unsigned char)text[0];
        const bool control =
            first < 0x20 || first == 0x7f || (first == 0xc2 && length && (unsigned char)text[1] < 0xa0);
        if (done + (length ? length : 1) > DML__SHOWN_BYTES - 4) {
            memcpy(to + done, "...", 3);
            done += 3;
            break;
        }
        if (!length || control)
            to[done++] = '?';
        else
            for (size_t i = 0; i < length; i++) to[done++] = text[i];
        text += length ? length : 1;
    }
    to[done] = '\0';
    return to;
}

/* ---- reading ---- */

DML__LOCAL void dml__json_start(dml__json *json, const char *text, size_t bytes)
{
    json->text = text;
    json->bytes = bytes;
    json->at = 0;
    json->problem = NULL;
}

DML__LOCAL bool dml__json_fail(dml__json *json, size_t at, const char *problem)
{
    if (!json->problem) {
        json->problem = problem;
        json->at = at;
    }
    return false;
}

/* The next character that is no white space, not taken; 0 at the end. */
static char dml__json_peek(dml__json *json)
{
    if (json->problem) return '\0';
    while (json->at < json->bytes) {
        const char c = json->text[json->at];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return c;
        json->at++;
    }
    return '\0';
}

DML__LOCAL bool dml__json_take(dml__json *json, char character)
{
    if (dml__json_peek(json) != character) return false;
    json->at++;
    return true;
}

DML__LOCAL bool dml__json_expect(dml__json *json, char character)
{
    if (dml__json_take(json, character)) return true;
    const char *problem = character == '{'   ? "'{' was expected"
                          : character == '[' ? "'[' was expected"
                          : character == ']' ? "']' was expected"
                          : character == ':' ? "':' was expected"
                                             : "',' was expected";
    return dml__json_fail(json, json->at, problem);
}

DML__LOCAL bool dml__json_more(dml__json *json, char close, bool *first)
{
    const bool at_first = *first;
    *first = false;
    if (dml__json_take(json, close) || json->problem) return false;
    if (at_first || dml__json_take(json, ',')) return true;
    return dml__json_fail(json, json->at,
                          close == '}' ? "',' or '}' was expected" : "',' or ']' was expected");
}

/* Four hexadecimal digits; -1: they aren't. */
static long dml__hex4(const char *at, const char *end)
{
    long value = 0;
    if (end - at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        const char c = at[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* The character that the \u escape at `at` means, which is behind the u; -1: none. Sets its length: that of a
   pair, when it takes two to write it. */
static long dml__json_code(const char *at, const char *end, size_t *length)
{
    const long high = dml__hex4(at, end);
    *length = 4;
    if (high < 0xd800 || high > 0xdfff) return high;
    if (high >= 0xdc00 || end - at < 10 || at[4] != '\\' || at[5] != 'u') return -1;
    const long low = dml__hex4(at + 6, end);
    if (low < 0xdc00 || low > 0xdfff) return -1;
    *length = 10;
    return 0x10000 + (high - 0xd800) * 0x400 + (low - 0xdc00);
}

static size_t dml__utf8_encode(long code, char to[4])
{
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    const size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--, code >>= 6) to[i] = (char)(0x80 | (code & 0x3f));
    to[0] = (char)((length == 2 ? 0xc0 : length == 3 ? 0xe0 : 0xf0) | code);
    return length;
}

/* Reads one character of a string, escaped or not, and writes it as UTF-8. Returns the bytes it takes in the
   text, 0 and a problem where it is none. */
static size_t dml__json_character(const char *at, const char *end, char to[4], size_t *bytes,
                                  const char **problem)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    if ((unsigned char)*at < 0x20) {
        *problem = "a control character is in a string";
        return 0;
    }
    if (*at != '\\') {
        *bytes = dml__utf8_length(at, end);
        memcpy(to, at, *bytes);
        *problem = "a string isn't UTF-8";
        return *bytes;
    }
    if (end - at > 1 && at[1] == 'u') {
        size_t length;
        const long code = dml__json_code(at + 2, end, &length);
        *problem = code == 0 ? "a string contains \\u0000" : "a \\u escape isn't valid";
        if (code <= 0) return 0;
        *bytes = dml__utf8_encode(code, to);
        return 2 + length;
    }
    const char *letter = end - at > 1 && at[1] ? strchr(letters, at[1]) : NULL;
    *problem = "an escape isn't valid";
    if (!letter) return 0;
    to[0] = meanings[letter - letters];
    *bytes = 1;
    return 2;
}

/* Whether a character of a string stands for itself, a whole one. */
static bool dml__json_plain(char c)
{
    const unsigned char code = (unsigned char)c;
    return code >= 0x20 && code < 0x80 && c != '"' && c != '\\';
}

DML__LOCAL bool dml__json_read_string(dml__json *json, dml__json_string *string)
{
    if (!dml__json_take(json, '"')) return dml__json_fail(json, json->at, "a string was expected");
    const char *at = json->text + json->at, *end = json->text + json->bytes, *problem;
    char character[4];
    size_t bytes;
    string->from = at;
    while (at < end && *at != '"') {
        const size_t step =
            dml__json_plain(*at) ? 1 : dml__json_character(at, end, character, &bytes, &problem);
        if (!step) return dml__json_fail(json, (size_t)(at - json->text), problem);
        at += step;
    }
    if (at == end) return dml__json_fail(json, json->at - 1, "a string has no end");
    string->bytes = (size_t)(at - string->from);
    json->at = (size_t)(at - json->text) + 1;
    return true;
}

DML__LOCAL bool dml__json_read_name(dml__json *json, dml__json_string *name)
{
    return dml__json_read_string(json, name) && dml__json_expect(json, ':');
}

DML__LOCAL bool dml__json_read_count(dml__json *json, uint64_t *value)
{
    const char first = dml__json_peek(json);
    const size_t start = json->at;
    uint64_t n = 0;
    if (first < '0' || first > '9') return dml__json_fail(json, start, "a whole number was expected");
    for (; json->at < json->bytes; json->at++) {
        const char c = json->text[json->at];
        if (c == '.' || c == 'e' || c == 'E')
            return dml__json_fail(json, start, "a whole number was expected");
        if (c < '0' || c > '9') break;
        if (json->at > start && first == '0') return dml__json_fail(json, start, "a number begins with 0");
        const uint64_t digit = (uint64_t)(c - '0');
        if (n > (UINT64_MAX - digit) / 10) return dml__json_fail(json, start, "a number is too large");
        n = n * 10 + digit;
    }
    *value = n;
    return true;
}

/* Whether the very next character is one of these, which is then taken. */
static bool dml__json_take_any(dml__json *json, const char *characters)
{
    const char c = json->at < json->bytes ? json->text[json->at] : '\0';
    if (c == '\0' || !strchr(characters, c)) return false;
    json->at++;
    return true;
}

static bool dml__json_take_digits(dml__json *json)
{
    const size_t start = json->at;
    while (dml__json_take_any(json, "0123456789")) continue;
    return json->at > start;
}

static bool dml__json_take_number(dml__json *json)
{
    dml__json_take_any(json, "-");
    if (!dml__json_take_any(json, "0") && !dml__json_take_digits(json)) return false;
    if (dml__json_take_any(json, ".") && !dml__json_take_digits(json)) return false;
    if (!dml__json_take_any(json, "eE")) return true;
    dml__json_take_any(json, "+-");
    return dml__json_take_digits(json);
}

static bool dml__json_take_word(dml__json *json)
{
    static const char *const words[] = { "true", "false", "null" };
    for (int i = 0; i < 3; i++) {
        const size_t bytes = strlen(words[i]);
        if (json->bytes - json->at < bytes || memcmp(json->text + json->at, words[i], bytes) != 0) continue;
        json->at += bytes;
        return true;
    }
    return false;
}

/* Neither an object nor an array. */
static bool dml__json_skip_plain(dml__json *json)
{
    dml__json_string string;
    if (dml__json_peek(json) == '"') return dml__json_read_string(json, &string);
    const size_t start = json->at;
    if (!json->problem && (dml__json_take_word(json) || dml__json_take_number(json))) return true;
    return dml__json_fail(json, start, "a value was expected");
}

DML__LOCAL bool dml__json_skip(dml__json *json)
{
    uint64_t objects = 0; /* a bit for each that is open, the innermost lowest: not an array */
    int depth = 0;
    bool first = true;
    dml__json_string name;
    do {
        const bool object = dml__json_take(json, '{');
        if (object || dml__json_take(json, '[')) {
            if (depth == 64) return dml__json_fail(json, json->at - 1, "values are nested more than 64 deep");
            objects = objects << 1 | (object ? 1u : 0u);
            depth++;
            first = true;
        } else if (!dml__json_skip_plain(json)) {
            return false;
        }
        while (depth > 0 && !dml__json_more(json, objects & 1 ? '}' : ']', &first)) {
            if (json->problem) return false;
            objects >>= 1;
            depth--;
        }
        if (depth > 0 && (objects & 1) && !dml__json_read_name(json, &name)) return false;
    } while (depth > 0);
    return true;
}

DML__LOCAL bool dml__json_end(dml__json *json)
{
    dml__json_peek(json);
    if (json->at < json->bytes) return dml__json_fail(json, json->at, "the end was expected");
    return !json->problem;
}

DML__LOCAL size_t dml__json_unescape(char *to, dml__json_string string)
{
    const char *at = string.from, *end = at + string.bytes, *problem;
    size_t done = 0;
    while (at < end) {
        if (*at != '\\') {
            to[done++] = *at++;
            continue;
        }
        char character[4];
        size_t bytes = 0;
        at += dml__json_character(at, end, character, &bytes, &problem);
        memcpy(to + done, character, bytes);
        done += bytes;
    }
    to[done] = '\0';
    return done;
}

DML__LOCAL bool dml__json_is(dml__json_string string, const char *text)
{
    const char *at = string.from, *end = at + string.bytes, *problem;
    while (at < end) {
        char character[4];
        size_t bytes = 0;
        at += dml__json_character(at, end, character, &bytes, &problem);
        if (strncmp(text, character, bytes) != 0) return false;
        text += bytes;
    }
    return *text == '\0';
}

/* ---- writing ---- */

static void dml__json_put(dml__json_writer *writer, const char *text, size_t bytes)
{
    if (writer->to) memcpy(writer->to + writer->bytes, text, bytes);
    writer->bytes += bytes;
}

DML__LOCAL void dml__json_write(dml__json_writer *writer, const char *text)
{
    dml__json_put(writer, text, strlen(text));
}

DML__LOCAL void dml__json_write_count(dml__json_writer *writer, uint64_t value)
{
    char digits[20];
    size_t at = sizeof digits;
    do digits[--at] = (char)('0' + value % 10);
    while (value /= 10);
    dml__json_put(writer, digits + at, sizeof digits - at);
}

DML__LOCAL void dml__json_write_string(dml__json_writer *writer, const char *text)
{
    static const char hex[] = "0123456789abcdef";
    dml__json_put(writer, "\"", 1);
    while (*text) {
        size_t run = 0;
        while ((unsigned char)text[run] >= 0x20 && text[run] != '"' && text[run] != '\\') run++;
        dml__json_put(writer, text, run);
        text += run;
        const unsigned char c = (unsigned char)*text;
        if (c == '\0') break;
        if (c < 0x20) {
            dml__json_put(writer, "\\u00", 4);
            dml__json_put(writer, hex + c / 16, 1);
            dml__json_put(writer, hex + c % 16, 1);
        } else {
            dml__json_put(writer, "\\", 1);
            dml__json_put(writer, text, 1);
        }
        text++;
    }
    dml__json_put(writer, "\"", 1);
}

/* What isn't of a number's characters is the locale's decimal point, of one byte or several. */
DML__LOCAL void dml__write_real(float value, char text[DML__NUMBER_BYTES])
{
    snprintf(text, DML__NUMBER_BYTES, "%.9g", (double)value);
    char *to = text;
    for (const char *c = text; *c; c++) {
        if (strchr("0123456789+-e", *c))
            *to++ = *c;
        else if (to == text || to[-1] != '.')
            *to++ = '.';
    }
    *to = '\0';
}

#endif
