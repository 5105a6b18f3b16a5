/* Each sending call with each receiving call; zero lengths; much data; files and pipes. */
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#include "calls.h"

static const job SENDERS[] = { do_send, do_sendto, do_write, do_writev, do_sendmsg, do_sendmmsg };
static const job RECEIVERS[] = { do_recv, do_recvfrom, do_read,
				 do_readv, do_recvmsg, do_recvmmsg };
enum { SENDER_COUNT = 6, RECEIVER_COUNT = 6 };

CASE(transfer_every_call)
{
	for (int sender = 0; sender < SENDER_COUNT; sender++)
		for (int receiver = 0; receiver < RECEIVER_COUNT; receiver++) {
			ON(pair->a, SENDERS[sender], .text = "from A to B");
			ON(pair->b, RECEIVERS[receiver], .size = 8, .flags = MSG_DONTWAIT);
			ON(pair->b, RECEIVERS[receiver], .size = 200, .flags = MSG_DONTWAIT);
			ON(pair->b, SENDERS[sender], .text = "and back");
			ON(pair->a, RECEIVERS[receiver], .size = 100, .flags = MSG_DONTWAIT);
		}
}

CASE(transfer_blocked_in_every_call)
{
	for (int receiver = 0; receiver < RECEIVER_COUNT; receiver++) {
		bool two = RECEIVERS[receiver] == do_recvmmsg;

		BEGIN(pair->b, RECEIVERS[receiver], .size = two ? 14 : 7);
		ON(pair->a, two ? do_send : SENDERS[receiver], .text = "wake up");
		if (two)
			ON(pair->a, do_send, .text = "at last");
		finish(pair->b);
		ON(pair->b, do_recv, .size = 100, .flags = MSG_DONTWAIT);
	}
}

CASE(transfer_nonblocking_every_call)
{
	ON(pair->a, do_nonblocking, .value = 1);
	ON(pair->b, do_nonblocking, .value = 1);
	for (int i = 0; i < RECEIVER_COUNT; i++) {
		ON(pair->b, RECEIVERS[i], .size = 100);
		ON(pair->a, SENDERS[i], .text = "something");
		ON(pair->b, RECEIVERS[i], .size = 100);
		ON(pair->b, RECEIVERS[i], .size = 100);
	}
	ON(pair->a, do_fill);
	for (int i = 0; i < SENDER_COUNT; i++)
		ON(pair->a, SENDERS[i], .text = "does not fit");
}

CASE(transfer_nothing)
{
	for (int i = 0; i < SENDER_COUNT; i++)
		ON(pair->a, SENDERS[i], .text = "");
	ON(pair->b, do_recv, .size = 10, .flags = MSG_DONTWAIT);
	ON(pair->b, do_recv, .size = 0, .flags = MSG_DONTWAIT);
	ON(pair->b, do_read, .size = 0);
	ON(pair->a, do_send, .text = "data");
	ON(pair->b, do_recv, .size = 0);
	ON(pair->b, do_recv, .size = 0, .flags = MSG_PEEK);
	ON(pair->b, do_read, .size = 0);
	ON(pair->b, do_readv, .size = 0);
	ON(pair->b, do_recvmsg, .size = 0);
	ON(pair->b, do_recv, .size = 10);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	ON(pair->b, do_recv, .size = 0);
	ON(pair->b, do_read, .size = 0);
	ON(pair->a, do_send, .text = "", .flags = MSG_NOSIGNAL);
	ON(pair->a, do_write, .text = "");
}

static void do_vectors(struct end *end, const struct arguments *args)
{
	static char bytes[IOV_MAX + 1];
	struct iovec parts[IOV_MAX + 1];
	long count = args->value;

	for (int i = 0; i < IOV_MAX + 1; i++) {
		bytes[i] = pattern(i);
		parts[i] = (struct iovec){ &bytes[i], 1 };
	}
	note(end, "writev of %ld", count);
	note_result(end, writev(args->fd, parts, count));
	note(end, ", sendmsg");
	note_result(end, sendmsg(args->fd, &(struct msghdr){ .msg_iov = parts, .msg_iovlen = count },
				 MSG_NOSIGNAL));
	note(end, ", sendmmsg of 0");
	note_result(end, sendmmsg(args->fd, NULL, 0, 0));
}

static void do_vectors_in(struct end *end, const struct arguments *args)
{
	static char bytes[IOV_MAX];
	struct iovec parts[IOV_MAX];

	for (int i = 0; i < IOV_MAX; i++)
		parts[i] = (struct iovec){ &bytes[i], 1 };
	note(end, "readv of %ld", args->value);
	note_result(end, readv(args->fd, parts, args->value));
	note_data(end, bytes, args->value);
}

CASE(transfer_many_parts)
{
	ON(pair->a, do_vectors, .value = 0);
	ON(pair->a, do_vectors, .value = 5);
	ON(pair->b, do_vectors_in, .value = 10);
	ON(pair->a, do_vectors, .value = IOV_MAX);
	ON(pair->b, do_vectors_in, .value = IOV_MAX);
	ON(pair->b, do_vectors_in, .value = IOV_MAX);
	ON(pair->a, do_vectors, .value = IOV_MAX + 1);
	ON(pair->a, do_vectors, .value = -1);
	ON(pair->b, do_recv, .size = 10, .flags = MSG_DONTWAIT);
}

static void do_positioned(struct end *end, const struct arguments *args)
{
	struct iovec part = { end->data, 4 };

	memcpy(end->data, "1234", 4);
	note(end, "pwritev2 at -1");
	note_result(end, pwritev2(args->fd, &part, 1, -1, 0));
	note(end, ", pwritev2 at 0");
	note_result(end, pwritev2(args->fd, &part, 1, 0, 0));
	note(end, ", pwrite");
	note_result(end, pwrite(args->fd, "x", 1, 0));
	note(end, ", lseek");
	note_result(end, lseek(args->fd, 0, SEEK_CUR));
}

static void do_positioned_in(struct end *end, const struct arguments *args)
{
	struct iovec part = { end->data, 100 };
	ssize_t got = preadv2(args->fd, &part, 1, -1, 0);

	note(end, "preadv2 at -1");
	note_result(end, got);
	note_data(end, end->data, got);
	note(end, ", pread");
	note_result(end, pread(args->fd, end->data, 1, 0));
	note(end, ", preadv");
	note_result(end, preadv(args->fd, &part, 1, 0));
}

CASE(transfer_positioned)
{
	ON(pair->a, do_positioned);
	ON(pair->b, do_positioned_in);
	ON(pair->b, do_positioned);
	ON(pair->a, do_positioned_in);
}

/* Sizes near those of the rings. */
CASE(transfer_sizes)
{
	static const long SIZES[] = { 1, 7, 64, 4095, 16383, 16384, 16385, 65536, 262143, 262145,
				      1 << 20 };

	for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
		BEGIN(pair->b, do_drain, .size = SIZES[i], .value = i);
		ON(pair->a, do_send, .size = SIZES[i], .value = i);
		finish(pair->b);
	}
}

CASE(transfer_much_in_small_pieces)
{
	BEGIN(pair->b, do_drain, .size = 300 * 1000);
	for (int i = 0; i < 300; i++) {
		for (int k = 0; k < 1000; k++)
			pair->a->data[k] = pattern(i * 1000 + k);
		if (write(pair->a->fd, pair->a->data, 1000) != 1000)
			die("a short write");
	}
	finish(pair->b);
}

/* Sends and receives much more than the buffers hold at the same time. */
static void do_both_ways(struct end *end, const struct arguments *args)
{
	long sent = 0, received = 0;
	bool good = true;

	check(fcntl(args->fd, F_SETFL, O_NONBLOCK), "F_SETFL");
	while (sent < args->size || received < args->size) {
		char piece[7000];
		ssize_t moved;
		size_t size = args->size - sent < 7000 ? args->size - sent : 7000;

		for (size_t i = 0; i < size; i++)
			piece[i] = pattern(sent + i);
		moved = size ? write(args->fd, piece, size) : 0;
		sent += moved > 0 ? moved : 0;
		moved = read(args->fd, piece, sizeof piece);
		for (ssize_t i = 0; i < moved; i++)
			good &= piece[i] == pattern(received + i);
		received += moved > 0 ? moved : 0;
		if (moved == 0)
			break;
		if (moved < 0)
			sleep_ms(0);
	}
	note(end, "sent %ld, received %ld %s", sent, received, good ? "as sent" : "not as sent");
	check(fcntl(args->fd, F_SETFL, 0), "F_SETFL");
}

CASE(transfer_both_ways)
{
	BEGIN(pair->b, do_both_ways, .size = 3000000);
	ON(pair->a, do_both_ways, .size = 3000000);
	finish(pair->b);
	exchange(pair, 2);
}

CASE(transfer_until_full)
{
	ON(pair->a, do_fill);
	ON(pair->a, do_poll, .flags = POLLOUT | POLLIN, .value = 0);
	ON(pair->a, do_send, .text = "x", .flags = MSG_DONTWAIT);
	/* B does not know the number of bytes, but checks that they are complete and in order. */
	ON(pair->b, do_drain, .size = 1L << 30, .flags = MSG_DONTWAIT);
	say("lost: %ld", pair->mode == THREADS ? pair->a->number - pair->b->number : 0);
	ON(pair->a, do_poll, .flags = POLLOUT, .value = 1000);
	exchange(pair, 2);
	BEGIN(pair->b, do_drain, .size = 1 << 20);
	ON(pair->a, do_send, .size = 1 << 20);
	finish(pair->b);
}

static int sample_file(void)
{
	int file = check(memfd_create("sample", MFD_CLOEXEC), "memfd_create");
	char bytes[10000];

	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = pattern(i);
	check(write(file, bytes, sizeof bytes), "write");
	check(lseek(file, 0, SEEK_SET), "lseek");
	return file;
}

static void do_sendfile(struct end *end, const struct arguments *args)
{
	int file = sample_file();
	off_t offset = args->value;

	note(end, "sendfile at %ld of %ld", (long)offset, args->size);
	note_result(end, sendfile(args->fd, file, args->flags ? &offset : NULL, args->size));
	note(end, " offset %ld file %ld", (long)offset, (long)lseek(file, 0, SEEK_CUR));
	close(file);
}

static void do_sendfile_from_socket(struct end *end, const struct arguments *args)
{
	int file = sample_file();

	note(end, "sendfile from a socket");
	note_result(end, sendfile(file, args->fd, NULL, 10));
	note(end, ", copy_file_range");
	note_result(end, copy_file_range(args->fd, NULL, file, NULL, 10, 0));
	close(file);
}

CASE(transfer_sendfile)
{
	ON(pair->a, do_sendfile, .size = 5000);
	ON(pair->b, do_drain, .size = 5000);
	ON(pair->a, do_sendfile, .size = 5000, .value = 300, .flags = 1);
	ON(pair->b, do_drain, .size = 5000, .value = 300);
	ON(pair->a, do_sendfile, .size = 5000, .value = 9000, .flags = 1);
	ON(pair->b, do_drain, .size = 1000, .value = 9000);
	ON(pair->a, do_sendfile, .size = 5000, .value = 20000, .flags = 1);
	ON(pair->a, do_sendfile, .size = 0);
	ON(pair->b, do_recv, .size = 10, .flags = MSG_DONTWAIT);
	ON(pair->a, do_send, .text = "for nobody");
	ON(pair->b, do_sendfile_from_socket);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_close);
	ON(pair->a, do_recv, .size = 10);
	ON(pair->a, do_send, .text = "x", .flags = MSG_NOSIGNAL);
	sleep_ms(settle_ms);
	ON(pair->a, do_sendfile, .size = 100);
}

static void make_pipe(struct end *end, const struct arguments *args __attribute__((unused)))
{
	check(pipe2(end->extra, O_NONBLOCK), "pipe2");
}

static void do_splice_out(struct end *end, const struct arguments *args)
{
	note(end, "splice from the socket, at most %ld", args->size);
	note_result(end, splice(args->fd, NULL, end->extra[1], NULL, args->size, args->flags));
	ssize_t got = read(end->extra[0], end->data, DATA_BYTES);
	note(end, ", from the pipe");
	note_result(end, got);
	note_data(end, end->data, got);
}

static void do_splice_in(struct end *end, const struct arguments *args)
{
	check(write(end->extra[1], args->text, strlen(args->text)), "write");
	note(end, "splice to the socket");
	note_result(end, splice(end->extra[0], NULL, args->fd, NULL, 1000, args->flags));
}

CASE(transfer_splice)
{
	ON(pair->a, make_pipe);
	ON(pair->b, make_pipe);
	ON(pair->a, do_splice_in, .text = "through a pipe");
	ON(pair->b, do_splice_out, .size = 1000);
	ON(pair->a, do_send, .text = "one two");
	ON(pair->b, do_splice_out, .size = 3);
	ON(pair->b, do_recv, .size = 100);
	BEGIN(pair->b, do_splice_out, .size = 1000);
	ON(pair->a, do_splice_in, .text = "waited for", .flags = SPLICE_F_MOVE | SPLICE_F_MORE);
	ON(pair->a, do_splice_in, .text = ".");
	finish(pair->b);
	ON(pair->b, do_nonblocking, .value = 1);
	sleep_ms(5);
	ON(pair->b, do_splice_out, .size = 1000);
	ON(pair->b, do_splice_out, .size = 1000);
	ON(pair->b, do_splice_in, .text = "the other way");
	ON(pair->a, do_recv, .size = 100);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	ON(pair->b, do_splice_out, .size = 1000);
	ON(pair->a, do_close);
	ON(pair->b, do_send, .text = "x", .flags = MSG_NOSIGNAL);
	sleep_ms(settle_ms);
	ON(pair->b, do_splice_in, .text = "too late");
}

/* Invalid addresses: NULL, and one of the kernel's. They are also used after a valid piece. */
static void *const NOWHERE[] = { NULL, (void *)-4096L };

static void do_send_nowhere(struct end *end, const struct arguments *args)
{
	for (size_t i = 0; i < sizeof NOWHERE / sizeof *NOWHERE; i++) {
		struct iovec parts[2] = { { "good", 4 }, { NOWHERE[i], 5 } };
		struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };

		note(end, i ? ", send" : "send");
		note_result(end, send(args->fd, NOWHERE[i], 5, MSG_NOSIGNAL));
		note_result(end, send(args->fd, NOWHERE[i], 0, MSG_NOSIGNAL));
		note_result(end, write(args->fd, NOWHERE[i], 5));
		note_result(end, writev(args->fd, parts, 2));
		note_result(end, writev(args->fd, NOWHERE[i], 2));
		note_result(end, sendmsg(args->fd, &message, MSG_NOSIGNAL));
		note_result(end, sendmsg(args->fd, NOWHERE[i], MSG_NOSIGNAL));
	}
}

static void do_recv_nowhere(struct end *end, const struct arguments *args)
{
	for (size_t i = 0; i < sizeof NOWHERE / sizeof *NOWHERE; i++) {
		struct iovec parts[2] = { { end->data, 4 }, { NOWHERE[i], 5 } };
		struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };

		note(end, i ? ", recv" : "recv");
		note_result(end, recv(args->fd, NOWHERE[i], 5, args->flags));
		note_result(end, recv(args->fd, NOWHERE[i], 5, args->flags | MSG_PEEK));
		if (args->flags)
			continue;
		note_result(end, read(args->fd, NOWHERE[i], 5));
		note_result(end, readv(args->fd, parts, 2));
		note_result(end, readv(args->fd, NOWHERE[i], 2));
		note_result(end, recvmsg(args->fd, &message, 0));
		note_result(end, recvmsg(args->fd, NOWHERE[i], 0));
	}
}

CASE(transfer_nowhere)
{
	ON(pair->a, do_send_nowhere);
	ON(pair->b, do_recv_nowhere, .flags = MSG_DONTWAIT);
	ON(pair->a, do_send, .text = "more than four");
	ON(pair->b, do_recv_nowhere);
	ON(pair->b, do_recv, .size = 100);
	BEGIN(pair->b, do_recv_nowhere);
	ON(pair->a, do_send, .text = "when it comes");
	finish(pair->b);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	ON(pair->b, do_recv_nowhere, .flags = MSG_DONTWAIT);
	ON(pair->a, do_send_nowhere);
}
