#include "base/json.h"

#include "../test.h"

/* The text in a block of just its size, so that a byte read too far is noticed. */
static char *block;

static dml__json start(const char *text)
{
    dml__json json;
    const size_t bytes = strlen(text);
    free(block);
    block = (char *)malloc(bytes ? bytes : 1);
    memcpy(block, text, bytes);
    dml__json_start(&json, block, bytes);
    return json;
}

static void check_string(const char *text, const char *want)
{
    dml__json json = start(text);
    dml__json_string string;
    char got[64];
    CHECK_MESSAGE(dml__json_read_string(&json, &string), "%s: %s", text, json.problem);
    CHECK(dml__json_end(&json));
    if (json.problem) return;
    CHECK(dml__json_is(string, want));
    CHECK(!dml__json_is(string, "another"));
    memset(got, 'e', sizeof got);
    CHECK_INT(dml__json_unescape(got, string), strlen(want));
    CHECK_STRING(got, want);
    CHECK_INT(got[strlen(want) + 1], 'e');
    char *place = block + (string.from - block);
    dml__json_unescape(place, string);
    CHECK_STRING(place, want);
}

static void check_no_string(const char *text, size_t at, const char *problem)
{
    dml__json json = start(text);
    dml__json_string string;
    CHECK(!dml__json_read_string(&json, &string));
    CHECK_STRING(json.problem, problem);
    CHECK_INT(json.at, at);
}

static void strings(void)
{
    check_string("\"\"", "");
    check_string(" \t\r\n\"a b\" ", "a b");
    check_string("\"plain ~\x7f\"", "plain ~\x7f");
    check_string("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t");
    check_string("\"\\u0001\\u007f\\u0080\\u07ff\\u0800\\uFFFF\"",
                 "\x01\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf");
    check_string("\"\\ud800\\udc00\\uDBFF\\uDFFF!\"", "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf!");
    check_string("\"\\uabcd\\uABCD\"", "\xea\xaf\x8d\xea\xaf\x8d");
    check_string("\"\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\"",
                 "\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf0\x90\x80\x80\xf4\x8f\xbf\xbf");
}

static void what_is_no_string(void)
{
    const char *escape = "a \\u escape isn't valid", *utf8 = "a string isn't UTF-8";
    check_no_string("", 0, "a string was expected");
    check_no_string(" a", 1, "a string was expected");
    check_no_string("\"", 0, "a string has no end");
    check_no_string(" \"abc", 1, "a string has no end");
    check_no_string("\"\\", 1, "an escape isn't valid");
    check_no_string("\"\\x\"", 1, "an escape isn't valid");
    check_no_string("\"\\\"", 0, "a string has no end");
    check_no_string("\"a\nb\"", 2, "a control character is in a string");
    check_no_string("\"\x1f\"", 1, "a control character is in a string");
    check_no_string("\"\\u0000\"", 1, "a string contains \\u0000");
    check_no_string("\"\\u", 1, escape);
    check_no_string("\"\\u12", 1, escape);
    check_no_string("\"\\u123\"", 1, escape);
    check_no_string("\"\\u123g\"", 1, escape);
    check_no_string("\"\\u123/\"", 1, escape);
    check_no_string("\"\\u:123\"", 1, escape);
    check_no_string("\"\\u@123\"", 1, escape);
    check_no_string("\"\\u`123\"", 1, escape);
    check_no_string("\"\\udc00\"", 1, escape);
    check_no_string("\"\\ud800\"", 1, escape);
    check_no_string("\"\\ud800\\n56789\"", 1, escape);
    check_no_string("\"\\ud800xu1234\"", 1, escape);
    check_no_string("\"\\ud800\\ud800\"", 1, escape);
    check_no_string("\"\\ud800\\ue000\"", 1, escape);
    check_no_string("\"\\ud800\\udc0", 1, escape);
    check_no_string("\"\x80\"", 1, utf8);
    check_no_string("\"\xbf\"", 1, utf8);
    check_no_string("\"\xc0\x80\"", 1, utf8);
    check_no_string("\"\xc1\xbf\"", 1, utf8);
    check_no_string("\"\xc2\"", 1, utf8);
    check_no_string("\"\xc2\xc0\"", 1, utf8);
    check_no_string("\"\xc2", 1, utf8);
    check_no_string("\"\xe0\x9f\xbf\"", 1, utf8);
    check_no_string("\"\xe1\x80", 1, utf8);
    check_no_string("\"\xed\xa0\x80\"", 1, utf8);
    check_no_string("\"\xf0\x8f\xbf\xbf\"", 1, utf8);
    check_no_string("\"\xf4\x90\x80\x80\"", 1, utf8);
    check_no_string("\"\xf5\x80\x80\x80\"", 1, utf8);
    check_no_string("\"\xff\"", 1, utf8);
}

static void check_count(const char *text, uint64_t want, size_t at)
{
    dml__json json = start(text);
    uint64_t got = 0;
    CHECK_MESSAGE(dml__json_read_count(&json, &got), "%s: %s", text, json.problem);
    CHECK(got == want);
    CHECK_INT(json.at, at);
}

static void check_no_count(const char *text, size_t at, const char *problem)
{
    dml__json json = start(text);
    uint64_t got = 7;
    CHECK(!dml__json_read_count(&json, &got));
    CHECK_STRING(json.problem, problem);
    CHECK_INT(json.at, at);
    CHECK(got == 7);
}

static void counts(void)
{
    check_count("0", 0, 1);
    check_count(" 1234567890]", 1234567890, 11);
    check_count("18446744073709551615", UINT64_MAX, 20);
    check_no_count("18446744073709551616", 0, "a number is too large");
    check_no_count("184467440737095516150", 0, "a number is too large");
    check_no_count("", 0, "a whole number was expected");
    check_no_count(" -1", 1, "a whole number was expected");
    check_no_count("+1", 0, "a whole number was expected");
    check_no_count("/", 0, "a whole number was expected");
    check_no_count(":", 0, "a whole number was expected");
    check_no_count("1.0", 0, "a whole number was expected");
    check_no_count("1e3", 0, "a whole number was expected");
    check_no_count("1E3", 0, "a whole number was expected");
    check_no_count("01", 0, "a number begins with 0");
    check_no_count("00", 0, "a number begins with 0");
}

/* Objects and arrays: adds the numbers of {"a":[1,2],...}. */
static bool add_up(const char *text, dml__json *json, uint64_t *sum)
{
    *json = start(text);
    *sum = 0;
    if (!dml__json_expect(json, '{')) return false;
    for (bool first = true; dml__json_more(json, '}', &first);) {
        dml__json_string name;
        if (!dml__json_read_name(json, &name) || !dml__json_expect(json, '[')) return false;
        for (bool none = true; dml__json_more(json, ']', &none);) {
            uint64_t value;
            if (!dml__json_read_count(json, &value)) return false;
            *sum += value;
        }
    }
    return dml__json_end(json);
}

static void check_sum(const char *text, uint64_t want)
{
    dml__json json;
    uint64_t sum;
    CHECK_MESSAGE(add_up(text, &json, &sum), "%s: %s", text, json.problem);
    CHECK(sum == want);
}

static void check_no_sum(const char *text, size_t at, const char *problem)
{
    dml__json json;
    uint64_t sum;
    CHECK(!add_up(text, &json, &sum));
    CHECK_STRING(json.problem, problem);
    CHECK_INT(json.at, at);
    CHECK(!text[at] || !dml__json_take(&json, text[at])); /* nothing goes on after a problem */
    CHECK(!dml__json_expect(&json, ':'));
    CHECK(!dml__json_end(&json));
    CHECK_STRING(json.problem, problem);
}

static void members(void)
{
    check_sum("{}", 0);
    check_sum(" { } ", 0);
    check_sum("{\"a\":[]}", 0);
    check_sum("\n{ \"a\" :\t[ 1 , 2 ] , \"a\":[3]}\r", 6);
    check_no_sum("", 0, "'{' was expected");
    check_no_sum("[", 0, "'{' was expected");
    check_no_sum("{", 1, "a string was expected");
    check_no_sum("{\"a\"}", 4, "':' was expected");
    check_no_sum("{\"a\":}", 5, "'[' was expected");
    check_no_sum("{\"a\":[,1]}", 6, "a whole number was expected");
    check_no_sum("{\"a\":[1,]}", 8, "a whole number was expected");
    check_no_sum("{\"a\":[1}}", 7, "',' or ']' was expected");
    check_no_sum("{\"a\":[1 2]}", 8, "',' or ']' was expected");
    check_no_sum("{\"a\":[1]]", 8, "',' or '}' was expected");
    check_no_sum("{\"a\":[1],}", 9, "a string was expected");
    check_no_sum("{\"a\":[1]", 8, "',' or '}' was expected");
    check_no_sum("{\"a\":[1]} }", 10, "the end was expected");
}

static void every_character_that_may_be_asked_for(void)
{
    dml__json json = start("x");
    CHECK(!dml__json_expect(&json, ']'));
    CHECK_STRING(json.problem, "']' was expected");
    json = start("x");
    CHECK(!dml__json_expect(&json, ','));
    CHECK_STRING(json.problem, "',' was expected");
    CHECK(!dml__json_fail(&json, 7, "another"));
    CHECK_STRING(json.problem, "',' was expected");
    CHECK_INT(json.at, 0);
}

static void check_no_value(const char *text, size_t at, const char *problem)
{
    dml__json json = start(text);
    CHECK(!dml__json_skip(&json));
    CHECK_STRING(json.problem, problem);
    CHECK_INT(json.at, at);
}

static void values_that_are_skipped(void)
{
    static const char *const good[] = { "0",
                                        " -12.5e+3 ",
                                        "1E9",
                                        "true",
                                        "false",
                                        "null",
                                        "\"}\"",
                                        "[]",
                                        "{ }",
                                        "[[], {}, 1]",
                                        "{\"a\": [{\"b\": null}], \"c\": -0}" };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        dml__json json = start(good[i]);
        CHECK_MESSAGE(dml__json_skip(&json) && dml__json_end(&json), "%s: %s", good[i], json.problem);
    }
    dml__json json = start("1");
    dml__json_fail(&json, 0, "something else");
    CHECK(!dml__json_skip(&json)); /* after another problem */
    check_no_value("", 0, "a value was expected");
    check_no_value(" nul", 1, "a value was expected");
    check_no_value("-", 0, "a value was expected");
    check_no_value("1.", 0, "a value was expected");
    check_no_value("1e+", 0, "a value was expected");
    check_no_value("[", 1, "a value was expected");
    check_no_value("[1,]", 3, "a value was expected");
    check_no_value("[1 2]", 3, "',' or ']' was expected");
    check_no_value("[1}", 2, "',' or ']' was expected");
    check_no_value("{\"a\":1]", 6, "',' or '}' was expected");
    check_no_value("{\"a\" 1}", 5, "':' was expected");
    check_no_value("{1:2}", 1, "a string was expected");
    check_no_value("[\"a", 1, "a string has no end");
}

static void comparing(void)
{
    dml__json json = start("\"dt\\u0079pe\"");
    dml__json_string string;
    CHECK(dml__json_read_string(&json, &string));
    CHECK(dml__json_is(string, "dtype"));
    CHECK(!dml__json_is(string, "dtyp"));
    CHECK(!dml__json_is(string, "dtypes"));
    CHECK(!dml__json_is(string, "dtxpe"));
    CHECK(!dml__json_is(string, ""));
    json = start("\"\"");
    CHECK(dml__json_read_string(&json, &string));
    CHECK(dml__json_is(string, ""));
    CHECK(!dml__json_is(string, "a"));
}

static void writing(void)
{
    char text[200];
    dml__json_writer count = { NULL, 0 }, writer = { text, 0 };
    dml__json_writer *both[2] = { &count, &writer };
    memset(text, 'e', sizeof text);
    for (int i = 0; i < 2; i++) {
        dml__json_write(both[i], "[");
        dml__json_write_string(both[i], "");
        dml__json_write_string(both[i], "a\"b\\c\n\x1f\x01 \x7f\xc3\xa9/\"");
        dml__json_write_count(both[i], 0);
        dml__json_write(both[i], ",");
        dml__json_write_count(both[i], 10);
        dml__json_write(both[i], ",");
        dml__json_write_count(both[i], UINT64_MAX);
    }
    const char *want = "[\"\"\"a\\\"b\\\\c\\u000a\\u001f\\u0001 \x7f\xc3\xa9/\\\"\"0,10,18446744073709551615";
    CHECK_INT(count.bytes, strlen(want));
    CHECK_INT(writer.bytes, strlen(want));
    CHECK_INT(text[writer.bytes], 'e');
    text[writer.bytes] = '\0';
    CHECK_STRING(text, want);
}

static void utf8(void)
{
    CHECK(dml__is_utf8(""));
    CHECK(dml__is_utf8("a\x01\xc3\xa9\xf0\x9f\x98\x80"));
    CHECK(!dml__is_utf8("a\xc3"));
    CHECK(!dml__is_utf8("\xff"));
}

static void check_shown(const char *text, const char *want)
{
    char shown[DML__SHOWN_BYTES];
    CHECK(dml__shown(text, strlen(text), shown) == shown);
    CHECK_STRING(shown, want);
}

static void texts_in_sentences(void)
{
    const char *sixty = "012345678901234567890123456789012345678901234567890123456789";
    char text[80];
    check_shown("", "");
    check_shown("a\"b\xc3\xa9", "a\"b\xc3\xa9");
    check_shown("\x1b[2J\n\x7f\xc2\x9b\xc2\xa0\xff", "?[2J???\xc2\xa0?");
    check_shown(sixty, sixty);
    snprintf(text, sizeof text, "%sx", sixty);
    char want[80];
    snprintf(want, sizeof want, "%s...", sixty);
    check_shown(text, want);
    snprintf(text, sizeof text, "%.59s\xc3\xa9", sixty); /* not half of a character */
    snprintf(want, sizeof want, "%.59s...", sixty);
    check_shown(text, want);
    char shown[DML__SHOWN_BYTES];
    CHECK_STRING(dml__shown("abc", 2, shown), "ab");
}

int main(void)
{
    RUN(strings);
    RUN(what_is_no_string);
    RUN(counts);
    RUN(members);
    RUN(every_character_that_may_be_asked_for);
    RUN(values_that_are_skipped);
    RUN(comparing);
    RUN(writing);
    RUN(utf8);
    RUN(texts_in_sentences);
    free(block);
    return test_report("base/json");
}
