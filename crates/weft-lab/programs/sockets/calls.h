/* The calls of most cases, as jobs. Each notes its name, arguments and result. */
#ifndef CALLS_H
#define CALLS_H

#include "harness.h"

/* These send `text`, or `size` bytes of the pattern from `value`, with `flags`. */
void do_send(struct end *end, const struct arguments *args);
void do_sendto(struct end *end, const struct arguments *args);
void do_write(struct end *end, const struct arguments *args);
void do_writev(struct end *end, const struct arguments *args);
void do_sendmsg(struct end *end, const struct arguments *args);
void do_sendmmsg(struct end *end, const struct arguments *args);
/* These receive at most `size` bytes with `flags`. */
void do_recv(struct end *end, const struct arguments *args);
void do_recvfrom(struct end *end, const struct arguments *args);
void do_read(struct end *end, const struct arguments *args);
void do_readv(struct end *end, const struct arguments *args);
void do_recvmsg(struct end *end, const struct arguments *args);
void do_recvmmsg(struct end *end, const struct arguments *args);
/* Receives until `size` bytes or EOF. Notes the number, and whether the bytes are the pattern. */
void do_drain(struct end *end, const struct arguments *args);
/* Sends without blocking until there is no room. Stores the number of bytes in `number`, and does
 * not note it. */
void do_fill(struct end *end, const struct arguments *args);

void do_shutdown(struct end *end, const struct arguments *args); /* `flags` is the direction */
void do_close(struct end *end, const struct arguments *args);
/* `size` is the length of the value. The default is that of an int. */
void do_setsockopt(struct end *end, const struct arguments *args);
void do_getsockopt(struct end *end, const struct arguments *args);
void do_so_error(struct end *end, const struct arguments *args);
void do_linger(struct end *end, const struct arguments *args); /* `value` seconds */
/* `name` is SO_RCVTIMEO or SO_SNDTIMEO, `value` milliseconds. */
void do_timeout(struct end *end, const struct arguments *args);
void do_nonblocking(struct end *end, const struct arguments *args); /* `value` 1 or 0 */
/* `name` is the request. Notes the resulting number. */
void do_ioctl(struct end *end, const struct arguments *args);
/* `flags` are the events, `value` is the timeout in milliseconds. */
void do_poll(struct end *end, const struct arguments *args);
void do_tcp_state(struct end *end, const struct arguments *args);
/* Waits until this thread has got more signals than `number`, and then receives. */
void do_wait_for_signal(struct end *end, const struct arguments *args);

/* Notes poll or epoll events by name. */
void note_events(struct end *end, unsigned events);
/* Notes the flags of a send or receive by name. */
void note_flags(struct end *end, int flags);

#endif
