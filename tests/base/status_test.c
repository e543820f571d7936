#include "base/status.h"

#include "base/error.h"
#include "base/logger.h"

#include "../test.h"

static void each_status_has_a_sentence_of_its_own(void)
{
    CHECK_INT(DML_OK, 0);
    for (int a = 0; a < (int)DML__STATUS_COUNT; a++) {
        CHECK(strlen(dml_status_string((dml_status)a)) > 1);
        for (int b = 0; b < a; b++)
            CHECK(strcmp(dml_status_string((dml_status)a), dml_status_string((dml_status)b)) != 0);
    }
    CHECK_STRING(dml_status_string(DML_OK), "ok");
    CHECK_STRING(dml_status_string(DML_ERROR_MEMORY), "no memory left");
    CHECK_STRING(dml_status_string(DML__STATUS_COUNT), "unknown status");
    CHECK_STRING(dml_status_string((dml_status)99), "unknown status");
}

static void the_first_error_sticks(void)
{
    dml__error error;
    memset(&error, 0, sizeof error);
    CHECK_INT(dml__fail(&error, DML_ERROR_SHAPE, "%d rows, not %s", 3, "four"), DML_ERROR_SHAPE);
    CHECK_INT(dml__fail(&error, DML_ERROR_IO, "later"), DML_ERROR_IO);
    CHECK_INT(error.status, DML_ERROR_SHAPE);
    CHECK_STRING(error.text, "3 rows, not four");
    CHECK_INT(dml__fail(NULL, DML_ERROR_IO, "nowhere"), DML_ERROR_IO);
}

static void a_long_error_is_cut(void)
{
    dml__error error;
    char text[2000];
    memset(&error, 0, sizeof error);
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    dml__fail(&error, DML_ERROR_IO, "%s", text);
    CHECK_INT(strlen(error.text), sizeof error.text - 1);
}

typedef struct heard {
    int count;
    dml_log_level level;
    char text[600];
} heard;

static void hear(void *user, dml_log_level level, const char *message)
{
    heard *h = (heard *)user;
    h->count++;
    h->level = level;
    snprintf(h->text, sizeof h->text, "%s", message);
}

static void the_log_goes_to_the_callback_alone(void)
{
    heard h;
    dml__logger logger = { NULL, NULL };
    memset(&h, 0, sizeof h);
    dml__log(&logger, DML_LOG_ERROR, "nobody hears %d", 1);
    logger.callback = hear;
    logger.user = &h;
    dml__log(&logger, DML_LOG_WARNING, "%s and %d", "this", 2);
    CHECK_INT(h.count, 1);
    CHECK_INT(h.level, DML_LOG_WARNING);
    CHECK_STRING(h.text, "this and 2");
}

int main(void)
{
    RUN(each_status_has_a_sentence_of_its_own);
    RUN(the_first_error_sticks);
    RUN(a_long_error_is_cut);
    RUN(the_log_goes_to_the_callback_alone);
    return test_report("base/status");
}
