/* The calls of which most cases are made, as jobs. Each notes its name, arguments and result. */
#ifndef CALLS_H
#define CALLS_H

#include "harness.h"

/* `text`, or else `size` bytes of the pattern from `value` on; `flags`. */
void do_send(struct end *end, const struct arguments *told);
void do_sendto(struct end *end, const struct arguments *told);
void do_write(struct end *end, const struct arguments *told);
void do_writev(struct end *end, const struct arguments *told);
void do_sendmsg(struct end *end, const struct arguments *told);
void do_sendmmsg(struct end *end, const struct arguments *told);
/* At most `size` bytes, `flags`. */
void do_recv(struct end *end, const struct arguments *told);
void do_recvfrom(struct end *end, const struct arguments *told);
void do_read(struct end *end, const struct arguments *told);
void do_readv(struct end *end, const struct arguments *told);
void do_recvmsg(struct end *end, const struct arguments *told);
void do_recvmmsg(struct end *end, const struct arguments *told);
/* Receives until `size` bytes or the end are there: how many, and whether they are the pattern. */
void do_drain(struct end *end, const struct arguments *told);
/* Sends without blocking until there is no room; the amount is kept in `number`, not noted. */
void do_fill(struct end *end, const struct arguments *told);

void do_shutdown(struct end *end, const struct arguments *told); /* `flags` says how */
void do_close(struct end *end, const struct arguments *told);
/* `size` is the length of the value, an int unless told. */
void do_setsockopt(struct end *end, const struct arguments *told);
void do_getsockopt(struct end *end, const struct arguments *told);
void do_so_error(struct end *end, const struct arguments *told);
void do_linger(struct end *end, const struct arguments *told); /* `value` seconds */
/* `name` is SO_RCVTIMEO or SO_SNDTIMEO, `value` milliseconds. */
void do_timeout(struct end *end, const struct arguments *told);
void do_nonblocking(struct end *end, const struct arguments *told); /* `value` 1 or 0 */
/* `name` is the request; the number it gives. */
void do_ioctl(struct end *end, const struct arguments *told);
/* `flags` are the events, `value` milliseconds. */
void do_poll(struct end *end, const struct arguments *told);
void do_tcp_state(struct end *end, const struct arguments *told);

/* Notes poll or epoll events by name. */
void note_events(struct end *end, unsigned events);
/* Notes the flags of a send or receive by name. */
void note_flags(struct end *end, int flags);

#endif
