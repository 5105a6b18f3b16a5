/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * NAME
 *	weft_socket.h - extended sockets: one-sided and asynchronous operations beside an ordinary
 *	TCP stream
 *
 * SYNOPSIS
 *	#include <weft_socket.h>	(no library: `weft run` brings it)
 *
 *	const struct weft_calls *weft;
 *	int error = weft_extend(fd, &weft);	(both ends call it)
 *	if (error)
 *		...				(ordinary sockets still work)
 *	weft->get(fd, &key, offset, &word, sizeof(word));
 *
 * DESCRIPTION
 *	A connected TCP socket whose two ends are on one host and both under `weft run` is carried by
 *	shared memory. Such a socket can be switched to extended mode. send(2), recv(2) and the like go
 *	on as before: the calls below, but for post_send and post_recv, put nothing into the stream.
 *
 *	One side lets its peer use a part of its memory: it allocates memory (allocate), registers a
 *	part of it for a connection (register) and sends the key, 24 bytes, to its peer as it sends
 *	everything. The peer then puts, gets and changes words there without any work of the owner's
 *	process. It names places by offsets from the beginning of the part.
 *
 *	Only memory from allocate() can be registered: it is memory that other processes can map.
 *
 * MEMORY AND ORDER
 *	An aligned word of 8 bytes is put and got as a whole; what is longer may be seen half done, if
 *	both sides use the same place at the same time. The atomic operations work on aligned words of
 *	8 bytes in the processors' byte order; they are the processor's own, so the owner's _Atomic
 *	uint64_t in the same place, and operations that come over other connections, are atomic
 *	towards them. Operations of one thread take effect in the order of its calls, and before what
 *	it sends afterwards is received: the receiver of these bytes sees the put before them.
 *
 * POSTED OPERATIONS
 *	Each socket has a queue of completions of its own, in the process: at most WEFT_POSTED_MAX are
 *	posted and not taken. One-sided operations are carried out while they are posted, by the
 *	calling thread, and complete at once; their buffers can be used again. Buffers of post_send and
 *	post_recv are in use until their completion has been taken; these two make progress while they
 *	are posted and in poll and wait. post_send puts its list of buffers into the ordinary stream,
 *	in order of posting; send(2) on a socket with unfinished posted sends, or recv(2) with posted
 *	receives, mixes bytes in an unspecified order. A receive completes when its buffers are full,
 *	or the stream has ended (its result is then smaller), or with an error.
 *
 *	To wait for several sockets use the socket itself in poll(2) or epoll(7): it is readable when
 *	there may be something for a posted receive, writable when there may be room for a posted send;
 *	then call poll. A one-sided operation has nothing to be waited for.
 *
 * FORK, DUP, EXEC
 *	Descriptors that dup(2) made are the same socket. A child has the parent's registered memory
 *	(shared, not a copy) and may use the socket and its keys; completions and posted operations
 *	remain the parent's. As always, a child of a process with several threads calls little before
 *	exec(2): none of these. Registrations last until deregister, or until all processes that have the
 *	socket have closed it. After exec(2), or over a Unix socket to another process, a socket is in
 *	extended mode again when weft_extend has been called there; what the former program had
 *	registered is revoked by exec.
 *
 * RETURN VALUE
 *	0, or a count, or one of these, negative:
 *
 *	EOPNOTSUPP, ENOPROTOOPT	the socket is not carried by shared memory, or not in extended mode
 *	ENOTCONN	it is not connected
 *	EAGAIN		O_NONBLOCK, and the peer has not switched yet: call again. Of post_*:
 *			completions have to be taken first
 *	ETIMEDOUT	the peer has not switched within 5 seconds, or SO_RCVTIMEO. Of deregister:
 *			see there
 *	ENOKEY		no such registration, or it has been revoked
 *	EACCES		the registration does not give this right
 *	ERANGE		past the end of what is registered
 *	EINVAL		a word that is not aligned, a length of 0, too many buffers
 *	ESTALE		the owner's memory cannot be reached: it had ended, or closed its descriptors,
 *			before the key was used for the first time
 *	EPERM		the same, because the owner cannot be looked into (it is not dumpable)
 *	ECONNRESET	the peer has gone. That is looked for once in a millisecond; operations may
 *			succeed until then, in memory that nobody has
 *	ENOSPC		all WEFT_KEYS_MAX registrations are taken
 *	ENOMEM		no memory
 *
 *	Both ends belong to one user, who could trace either process anyway: keys guard against
 *	mistakes and keep connections apart, they do not separate enemies.
 */
#ifndef WEFT_SOCKET_H
#define WEFT_SOCKET_H

#include <errno.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SOL_WEFT 0x57454654
/* int, to set: 1. Waits as weft_extend does. */
#define WEFT_MODE 1
/* const struct weft_calls *, to get. */
#define WEFT_CALLS 2

#define WEFT_VERSION 1
#define WEFT_PIECES_MAX 16
#define WEFT_POSTED_MAX 1024
#define WEFT_KEYS_MAX 8

/* Rights. */
#define WEFT_READ 1u
#define WEFT_WRITE 2u
#define WEFT_ATOMIC 4u

/* Names a registration. Programs send it as it is, and read length and rights at most. */
struct weft_key {
	uint64_t secret;
	uint64_t length;
	uint32_t index;
	uint32_t rights;
};

enum weft_operation {
	WEFT_PUT = 1,
	WEFT_GET,
	WEFT_FETCH_ADD,
	WEFT_COMPARE_SWAP,
	WEFT_SEND,
	WEFT_RECV,
};

struct weft_completion {
	uint64_t id;		/* as posted */
	int64_t result;		/* bytes moved, or a negative errno */
	uint64_t value;		/* of an atomic operation: the word before */
	uint32_t operation;	/* enum weft_operation */
	uint32_t reserved;
};

struct weft_calls {
	uint32_t version;	/* at least WEFT_VERSION */
	uint32_t size;		/* of this structure, in bytes; later versions add at the end */

	/* Memory that can be registered: zeros, whole pages, shared with children. */
	int (*allocate)(size_t length, void **memory);
	/* Gives back what allocate returned; the whole, and after it has been deregistered. */
	int (*release)(void *memory);
	/* Lets the peer of a connection use a part of allocated memory. */
	int (*register_memory)(int fd, void *memory, size_t length, uint32_t rights,
			       struct weft_key *key);
	/*
	 * Revokes a key. When it returns 0, no operation is under way, and none will begin. A peer
	 * that stands still in the middle of an operation is waited for for two seconds: then
	 * -ETIMEDOUT; the key is revoked, but that one operation may still go on. A peer that has
	 * gone is waited for for a tenth of a second: more than a thread of its needs that was in an
	 * operation while another closed the socket.
	 */
	int (*deregister)(int fd, const struct weft_key *key);

	/* To and from the peer's memory, `offset` bytes from the beginning of what the key names. */
	int (*put)(int fd, const struct weft_key *key, uint64_t offset, const void *from,
		   size_t length);
	int (*get)(int fd, const struct weft_key *key, uint64_t offset, void *to, size_t length);
	/* *before gets what was there; with compare_swap `value` is there now if that was `expected`. */
	int (*fetch_add)(int fd, const struct weft_key *key, uint64_t offset, uint64_t add,
			 uint64_t *before);
	int (*compare_swap)(int fd, const struct weft_key *key, uint64_t offset, uint64_t expected,
			    uint64_t value, uint64_t *before);

	/*
	 * The same with lists of up to WEFT_PIECES_MAX buffers. What is wrong with the list or the
	 * socket is returned, what is wrong with the key, the place or the peer is in the completion.
	 */
	int (*post_put)(int fd, const struct weft_key *key, uint64_t offset,
			const struct iovec *pieces, int count, uint64_t id);
	int (*post_get)(int fd, const struct weft_key *key, uint64_t offset,
			const struct iovec *pieces, int count, uint64_t id);
	int (*post_fetch_add)(int fd, const struct weft_key *key, uint64_t offset, uint64_t add,
			      uint64_t id);
	int (*post_compare_swap)(int fd, const struct weft_key *key, uint64_t offset,
				 uint64_t expected, uint64_t value, uint64_t id);
	int (*post_send)(int fd, const struct iovec *pieces, int count, uint64_t id);
	int (*post_recv)(int fd, const struct iovec *pieces, int count, uint64_t id);

	/* Takes up to `max` completions that are there, and returns how many: perhaps none. */
	int (*poll)(int fd, struct weft_completion *completions, int max);
	/*
	 * The same, but waits for the first one: `timeout_ms` at most, for ever if negative. 0 if none
	 * came, or nothing is posted; -EINTR as poll(2).
	 */
	int (*wait)(int fd, struct weft_completion *completions, int max, int timeout_ms);
};

/*
 * Switches a connected socket to extended mode and finds the calls. Returns 0 or a negative errno.
 * It waits until the peer has done the same and the connection has moved to shared memory; with
 * O_NONBLOCK it does not wait: -EAGAIN.
 */
static inline int weft_extend(int fd, const struct weft_calls **calls)
{
	const int on = 1;
	socklen_t length = sizeof(*calls);

	if (setsockopt(fd, SOL_WEFT, WEFT_MODE, &on, sizeof(on)) ||
	    getsockopt(fd, SOL_WEFT, WEFT_CALLS, calls, &length))
		return -errno;
	return 0;
}

#ifdef __cplusplus
}
#endif

#endif
