/* forms.h: calls that have had two forms. After the header of the library. */
#ifndef DML_TESTS_COMM_FORMS_H
#define DML_TESTS_COMM_FORMS_H

/* What dml_comm_close says, and DML_OK where it says nothing. */
#define JOB_CLOSE(comm)                                                                                      \
    __builtin_choose_expr(__builtin_types_compatible_p(__typeof__(dml_comm_close(comm)), void),              \
                          (dml_comm_close(comm), DML_OK), dml_comm_close(comm))

/* Sends and receives with a tag, where they have one. */
#ifdef DML_ANY_TAG
#define JOB_SEND_NOW(comm, data, count, dtype, to) dml_comm_send(comm, data, count, dtype, to, 0)
#define JOB_RECEIVE_NOW(comm, data, count, dtype, from)                                                      \
    dml_comm_receive(comm, data, count, dtype, from, 0, NULL)
#else
#define JOB_SEND_NOW(comm, data, count, dtype, to) dml_comm_send(comm, data, count, dtype, to)
#define JOB_RECEIVE_NOW(comm, data, count, dtype, from) dml_comm_receive(comm, data, count, dtype, from)
#endif

#endif
