/* json.h: a reader of JSON text that goes through it once, without recursion or memory, and a writer of its
   strings. Source: RFC 8259. Stricter than it in that no string may contain \u0000, since ours end with it.
 */
#ifndef DML_BASE_JSON_H
#define DML_BASE_JSON_H

#include "base/platform.h"

/* ---- reading ---- */

/* A place in a text. The first thing that isn't as it should be makes `problem` a sentence's end ("a string
   was expected"), found at offset `at`; every later call fails too, so that problems may be asked for once.
 */
typedef struct dml__json {
    const char *text;
    size_t bytes, at;
    const char *problem;
} dml__json;

/* What is between the quotes of a string, checked but escaped as in the text. */
typedef struct dml__json_string {
    const char *from;
    size_t bytes;
} dml__json_string;

DML__LOCAL void dml__json_start(dml__json *json, const char *text, size_t bytes);

/* Whether the next thing is that character of JSON's own, one of {}[]:, which is then taken. */
DML__LOCAL bool dml__json_take(dml__json *json, char character);

/* The same where it must come. */
DML__LOCAL bool dml__json_expect(dml__json *json, char character);

/* Inside an object or array: whether there is another member, behind the comma; false after taking `close`.
 *first is true before the first call. */
DML__LOCAL bool dml__json_more(dml__json *json, char close, bool *first);

DML__LOCAL bool dml__json_read_string(dml__json *json, dml__json_string *string);

/* The name of an object's member and the colon. */
DML__LOCAL bool dml__json_read_name(dml__json *json, dml__json_string *name);

/* A whole number from 0 to 2^64 - 1, without sign, fraction or exponent. */
DML__LOCAL bool dml__json_read_count(dml__json *json, uint64_t *value);

/* Goes past a value of any kind, nested at most 64 deep. */
DML__LOCAL bool dml__json_skip(dml__json *json);

/* Whether nothing but white space is left. */
DML__LOCAL bool dml__json_end(dml__json *json);

/* Records a problem at offset `at` unless there is one; always false. */
DML__LOCAL bool dml__json_fail(dml__json *json, size_t at, const char *problem);

/* Writes what a string that was read means, in UTF-8, and a 0 behind it; returns the bytes before the 0, at
   most those of the string. `to` may be string.from itself, if what is behind it (the quote) may go. */
DML__LOCAL size_t dml__json_unescape(char *to, dml__json_string string);

/* Whether it means `text`. */
DML__LOCAL bool dml__json_is(dml__json_string string, const char *text);

/* ---- writing ---- */

/* Text that is being written; with `to` NULL it is only counted. */
typedef struct dml__json_writer {
    char *to;
    uint64_t bytes;
} dml__json_writer;

DML__LOCAL void dml__json_write(dml__json_writer *writer, const char *text); /* as it is */
DML__LOCAL void dml__json_write_count(dml__json_writer *writer, uint64_t value);
DML__LOCAL void dml__json_write_string(dml__json_writer *writer, const char *text); /* quoted, escaped */

/* ---- both ---- */

/* The start of a text for a sentence: at most 60 bytes, and what isn't UTF-8 or could upset a terminal is
   '?'. Returns `to`. */
enum { DML__SHOWN_BYTES = 64 };
DML__LOCAL const char *dml__shown(const char *text, size_t bytes, char to[DML__SHOWN_BYTES]);

/* Whether the text is UTF-8 (shortest forms, no surrogates): what a string must be. */
DML__LOCAL bool dml__is_utf8(const char *text);

/* A finite number with the 9 digits that read back as the same float, "0.1" or "1e-05", in every locale. */
enum { DML__NUMBER_BYTES = 32 };
DML__LOCAL void dml__write_real(float value, char text[DML__NUMBER_BYTES]);

#endif
