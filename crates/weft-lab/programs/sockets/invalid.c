/* Calls that the kernel refuses or does partly: wrong lengths, wrong flags, little room. */
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

#include "calls.h"

/* Lengths of address buffers, some of them negative. */
static const int LENGTHS[] = { -1, (int)0x80000000, 0, 3, 16, 200 };

static void do_recvfrom_lengths(struct end *end, const struct arguments *args)
{
	struct sockaddr_storage name[2];

	for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
		socklen_t length = LENGTHS[i];
		char byte = '-';

		note(end, "\n    recvfrom with a name of %d bytes", LENGTHS[i]);
		note_result(end, recvfrom(args->fd, &byte, 1, MSG_DONTWAIT,
					  (struct sockaddr *)name, &length));
		note(end, " %c, %d", byte, (int)length);
		byte = '-';
		length = LENGTHS[i];
		note(end, ", without a place");
		note_result(end, recvfrom(args->fd, &byte, 1, MSG_DONTWAIT, NULL, &length));
		note(end, " %c, %d", byte, (int)length);
		byte = '-';
		struct iovec part = { &byte, 1 };
		struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_name = name,
					  .msg_namelen = LENGTHS[i] };

		note(end, ", recvmsg");
		note_result(end, recvmsg(args->fd, &message, MSG_DONTWAIT));
		note(end, " %c, %d", byte, (int)message.msg_namelen);
		byte = '-';
		message.msg_name = NULL;
		message.msg_namelen = LENGTHS[i];
		note(end, ", without a place");
		note_result(end, recvmsg(args->fd, &message, MSG_DONTWAIT));
		note(end, " %c, %d", byte, (int)message.msg_namelen);
	}
}

static void do_sendto_lengths(struct end *end, const struct arguments *args)
{
	struct sockaddr_storage name[2] = { 0 };

	for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
		struct iovec part = { "m", 1 };
		struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_name = name,
					  .msg_namelen = LENGTHS[i] };

		note(end, "\n    sendto with a name of %d bytes", LENGTHS[i]);
		note_result(end, sendto(args->fd, "t", 1, 0, (struct sockaddr *)name, LENGTHS[i]));
		note(end, ", without a place");
		note_result(end, sendto(args->fd, "n", 1, 0, NULL, LENGTHS[i]));
		note(end, ", sendmsg");
		note_result(end, sendmsg(args->fd, &message, 0));
	}
}

CASE(invalid_name_lengths)
{
	ON(pair->a, do_send, .text = "abcdefghijklmnopqrstuvwxyz");
	sleep_ms(settle_ms);
	ON(pair->b, do_recvfrom_lengths);
	ON(pair->b, do_recv, .size = 100, .flags = MSG_DONTWAIT);
	ON(pair->a, do_sendto_lengths);
	ON(pair->a, do_send, .text = "the end");
	ON(pair->b, do_recv, .size = 20, .flags = MSG_WAITALL);
	exchange(pair, 1);
}

static int receiver_on_loopback(struct sockaddr_in *address)
{
	socklen_t length = sizeof *address;
	int fd = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");

	*address = (struct sockaddr_in){ .sin_family = AF_INET,
					 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	check(bind(fd, (struct sockaddr *)address, length), "bind");
	check(getsockname(fd, (struct sockaddr *)address, &length), "getsockname");
	return fd;
}

LONE_CASE(invalid_name_lengths_of_datagrams)
{
	struct sockaddr_in address;
	struct end end = { .name = 'U', .fd = receiver_on_loopback(&address) };
	int from = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");
	char byte;

	check(connect(from, (struct sockaddr *)&address, sizeof address), "connect");
	/* Weft carries datagrams in memory only after the socket has received some. */
	for (int i = 0; i < 20; i++) {
		check(send(from, "w", 1, 0), "send");
		check(recv(end.fd, &byte, 1, 0), "recv");
	}
	for (char next = 'a'; next <= 'z'; next++)
		check(send(from, &next, 1, 0), "send");
	do_recvfrom_lengths(&end, &(struct arguments){ .fd = end.fd });
	say("%s", end.note);
}

static void do_no_bytes(struct end *end, const struct arguments *args)
{
	struct iovec none[2] = { { end->data, 0 }, { NULL, 0 } };

	note(end, "readv of nothing");
	note_result(end, readv(args->fd, none, 2));
	note_result(end, readv(args->fd, none, 0));
	note_result(end, readv(args->fd, NULL, 0));
	note_result(end, preadv2(args->fd, none, 2, -1, 0));
	note(end, ", writev of nothing");
	note_result(end, writev(args->fd, none, 2));
	note_result(end, writev(args->fd, none, 0));
	note_result(end, writev(args->fd, NULL, 0));
	note(end, ", read");
	note_result(end, read(args->fd, end->data, 0));
}

CASE(transfer_no_bytes)
{
	ON(pair->b, do_no_bytes);
	ON(pair->a, do_send, .text = "something");
	ON(pair->b, do_no_bytes);
	ON(pair->b, do_recv, .size = 100);
	ON(pair->b, do_shutdown, .flags = SHUT_WR);
	ON(pair->b, do_no_bytes);
	ON(pair->b, do_write, .text = "");
	ON(pair->a, do_close);
	sleep_ms(settle_ms);
	ON(pair->b, do_no_bytes);
}

LONE_CASE(transfer_no_bytes_of_datagrams)
{
	struct sockaddr_in address;
	struct end end = { .name = 'U', .fd = receiver_on_loopback(&address) };

	check(connect(end.fd, (struct sockaddr *)&address, sizeof address), "connect");
	do_no_bytes(&end, &(struct arguments){ .fd = end.fd });
	say("%s", end.note);
	say("then %zd", recv(end.fd, end.data, 10, MSG_DONTWAIT));
}

static void say_failure(const char *what, long result)
{
	say("%s: %ld %s", what, result, result < 0 ? strerrorname_np(errno) : "");
}

/* A dup3 that the kernel refuses does not change the descriptor. */
CASE(invalid_copies)
{
	int other = check(memfd_create("file", 0), "memfd_create"), fd = pair->a->fd;
	struct rlimit limit, low;

	say_failure("dup3 with flags", dup3(other, fd, 1));
	exchange(pair, 1);
	say_failure("dup3 with O_NONBLOCK", dup3(other, fd, O_NONBLOCK | O_CLOEXEC));
	exchange(pair, 1);
	say_failure("dup3 of -1", dup3(-1, fd, 0));
	exchange(pair, 1);
	check(getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
	low = limit;
	low.rlim_cur = fd;
	check(setrlimit(RLIMIT_NOFILE, &low), "setrlimit");
	say_failure("dup2 beyond the limit", dup2(other, fd));
	say_failure("dup3 beyond the limit", dup3(other, fd, 0));
	check(setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
	exchange(pair, 1);
	say("dup3 %d", dup3(other, fd, O_CLOEXEC) == fd);
	ON(pair->b, do_recv, .size = 10);
}

static void do_async(struct end *end, const struct arguments *args)
{
	struct f_owner_ex owner = { F_OWNER_TID, gettid() };
	int on = 1;

	signal(SIGIO, SIG_IGN);
	fcntl(args->fd, F_SETSIG, SIGUSR1);
	fcntl(args->fd, F_SETOWN_EX, &owner);
	note(end, "FIOASYNC");
	note_result(end, ioctl(args->fd, FIOASYNC, args->flags ? NULL : &on));
	end->number = user_signals;
}

CASE(ioctl_signal_driven)
{
	ON(pair->b, do_async, .flags = 1);
	exchange(pair, 1);
	ON(pair->b, do_async);
	for (int i = 0; i < 3; i++) {
		ON(pair->a, do_send, .text = "ring");
		sleep_ms(settle_ms);
		if (pair->b->remote)
			ON(pair->b, do_wait_for_signal);
	}
}

/* The receiving thread is the owner. The inbox is in use before the program requests signals. */
static void signals_of_datagrams(bool by_ioctl)
{
	struct sockaddr_in address;
	struct f_owner_ex owner = { F_OWNER_TID, gettid() };
	int fd = receiver_on_loopback(&address), on = 1;
	int from = check(socket(AF_INET, SOCK_DGRAM, 0), "socket");
	char byte;

	check(connect(from, (struct sockaddr *)&address, sizeof address), "connect");
	for (int i = 0; i < 50; i++) {
		check(send(from, "w", 1, 0), "send");
		check(recv(fd, &byte, 1, 0), "recv");
	}
	/* This call opens the inbox. */
	recv(fd, &byte, 1, MSG_DONTWAIT);
	signal(SIGIO, SIG_IGN);
	check(fcntl(fd, F_SETSIG, SIGUSR1), "F_SETSIG");
	check(fcntl(fd, F_SETOWN_EX, &owner), "F_SETOWN_EX");
	if (by_ioctl)
		check(ioctl(fd, FIOASYNC, &on), "FIOASYNC");
	else
		check(fcntl(fd, F_SETFL, O_ASYNC), "O_ASYNC");
	for (int i = 0; i < 5; i++) {
		int before = user_signals;

		check(send(from, "s", 1, 0), "send");
		for (int wait = 0; wait < 100 && user_signals == before; wait++)
			sleep_ms(10);
		say("SIGIO %s, recv %zd", user_signals == before ? "missing" : "has come",
		    recv(fd, &byte, 1, MSG_DONTWAIT));
	}
}

LONE_CASE(option_signal_driven_datagrams)
{
	signals_of_datagrams(false);
}

LONE_CASE(ioctl_signal_driven_datagrams)
{
	signals_of_datagrams(true);
}

enum { PIPED = 40000 };

static int in_pipe(const struct end *end)
{
	int left = -1;

	check(ioctl(end->extra[0], FIONREAD, &left), "FIONREAD");
	return left;
}

/* Bytes that the socket does not take stay in the pipe. */
static void do_splice_until_full(struct end *end, const struct arguments *args)
{
	static char bytes[PIPED];
	long spliced = 0, result;

	do {
		int there = in_pipe(end);

		if (!there)
			there = check(write(end->extra[1], bytes, PIPED), "write");
		result = splice(end->extra[0], NULL, args->fd, NULL, PIPED, args->flags);
		if (there - in_pipe(end) != (result > 0 ? result : 0))
			note(end, "%ld taken, but %d have gone; ", result, there - in_pipe(end));
		if (result > 0)
			spliced += result;
	} while (result > 0);
	note(end, "splice until full");
	note_result(end, result);
	end->number = spliced;
}

static void do_count(struct end *end, const struct arguments *args)
{
	long got = 0, now;

	while ((now = recv(args->fd, end->data, DATA_BYTES, 0)) > 0)
		got += now;
	note(end, "as many bytes as were spliced: %d", got == args->size);
}

static void do_make_pipe(struct end *end, const struct arguments *args __attribute__((unused)))
{
	check(pipe2(end->extra, O_NONBLOCK), "pipe2");
}

CASE(transfer_splice_until_full)
{
	ON(pair->a, do_make_pipe);
	ON(pair->a, do_nonblocking, .value = 1);
	ON(pair->a, do_splice_until_full, .flags = SPLICE_F_NONBLOCK);
	/* B checks that no byte is lost or sent twice. */
	ON(pair->a, do_shutdown, .flags = SHUT_WR);
	ON(pair->b, do_count, .size = pair->a->number);
}

/* The peer receives a few bytes at a time. */
static void do_take_slowly(struct end *end, const struct arguments *args)
{
	long got = 0;
	bool same = true;

	for (;;) {
		ssize_t now = recv(args->fd, end->data, 3000, 0);

		if (now <= 0)
			break;
		for (ssize_t i = 0; i < now; i++)
			same = same && end->data[i] == pattern(got + i);
		got += now;
		if (got < 300000)
			sleep_ms(1);
	}
	note(end, "taken %ld, %s", got, same ? "the pattern" : "something else");
}

static void do_splice_all(struct end *end, const struct arguments *args)
{
	enum { TOTAL = 6000000, STEP = 30000 };
	char bytes[STEP];
	long sent = 0, made = 0, refused = 0;

	while (sent < TOTAL) {
		if (made < TOTAL && made == sent) {
			for (int i = 0; i < STEP; i++)
				bytes[i] = pattern(made + i);
			made += check(write(end->extra[1], bytes, STEP), "write");
		}
		long result = splice(end->extra[0], NULL, args->fd, NULL, STEP, args->flags);

		if (result > 0) {
			sent += result;
		} else if (result < 0 && errno == EAGAIN) {
			refused++;
			sleep_ms(1);
		} else {
			note_result(end, result);
			break;
		}
	}
	note(end, "spliced %ld, refused now and then: %d", sent, refused > 0);
	shutdown(args->fd, SHUT_WR);
}

CASE(transfer_splice_little_room)
{
	ON(pair->a, do_make_pipe);
	ON(pair->a, do_nonblocking, .value = 1);
	BEGIN(pair->b, do_take_slowly);
	ON(pair->a, do_splice_all);
	finish(pair->b);
}

static void do_splice_much(struct end *end, const struct arguments *args)
{
	note(end, "splice of at most %ld", args->size);
	note_result(end, splice(args->fd, NULL, end->extra[1], NULL, args->size, args->flags));
	note(end, ", then %d in the pipe", in_pipe(end));
	ssize_t got = read(end->extra[0], end->data, DATA_BYTES);
	note_data(end, end->data, got);
}

CASE(transfer_splice_of_pages)
{
	ON(pair->b, do_make_pipe);
	ON(pair->b, do_nonblocking, .value = 1);
	ON(pair->a, do_send, .size = 20000);
	sleep_ms(settle_ms);
	ON(pair->b, do_splice_much, .size = 50000);
	ON(pair->a, do_send, .size = 20000);
	sleep_ms(settle_ms);
	ON(pair->b, do_splice_much, .size = 9000);
	ON(pair->b, do_splice_much, .size = 9000);
	ON(pair->b, do_splice_much, .size = 9000, .flags = SPLICE_F_NONBLOCK);
	ON(pair->b, do_splice_much, .size = 9000, .flags = SPLICE_F_NONBLOCK);
}

/* SPLICE_F_NONBLOCK affects only the pipe: a blocking socket waits. */
CASE(transfer_splice_nonblocking_pipe)
{
	ON(pair->b, do_make_pipe);
	BEGIN(pair->b, do_splice_much, .size = 100, .flags = SPLICE_F_NONBLOCK);
	sleep_ms(settle_ms);
	ON(pair->a, do_send, .text = "late");
	finish(pair->b);
}

static void do_sendfile_until_full(struct end *end, const struct arguments *args)
{
	enum { FILE_BYTES = 200000 };
	int file = check(memfd_create("file", 0), "memfd_create");
	off_t offset = 0;
	long result, sent = 0;

	for (int i = 0; i < FILE_BYTES; i++)
		end->data[i] = pattern(i);
	check(write(file, end->data, FILE_BYTES), "write");
	do {
		off_t before = offset;

		result = sendfile(args->fd, file, &offset, FILE_BYTES);
		if (offset - before != (result > 0 ? result : 0))
			note(end, "sendfile %ld, but the offset went on by %ld; ", result,
			     (long)(offset - before));
		if (result > 0)
			sent += result;
		if (offset == FILE_BYTES)
			offset = 0;
	} while (result > 0);
	note(end, "sendfile until full");
	note_result(end, result);
	note(end, ", much %d", sent > 10000);
	note(end, ", of a closed file");
	close(file);
	note_result(end, sendfile(args->fd, file, NULL, 10));
	note_result(end, sendfile(args->fd, file, &(off_t){ -1 }, 10));
}

CASE(transfer_sendfile_until_full)
{
	ON(pair->a, do_nonblocking, .value = 1);
	ON(pair->a, do_sendfile_until_full);
	ON(pair->b, do_recv, .size = 100, .flags = MSG_WAITALL);
}

static void do_option_lengths(struct end *end, const struct arguments *args)
{
	int one = 1;

	for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
		note(end, "\n    TCP_NODELAY of %d bytes", LENGTHS[i]);
		note_result(end, setsockopt(args->fd, IPPROTO_TCP, TCP_NODELAY, &one, LENGTHS[i]));
	}
	note(end, ", of no place");
	note_result(end, setsockopt(args->fd, IPPROTO_TCP, TCP_CORK, NULL, 4));
}

CASE(invalid_option_lengths)
{
	ON(pair->a, do_option_lengths);
	exchange(pair, 1);
}

static long address_space_gigabytes(void)
{
	long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	if (!file || fscanf(file, "%ld", &pages) != 1)
		die("/proc/self/statm");
	fclose(file);
	return (long)((double)pages * sysconf(_SC_PAGESIZE) / 1e9);
}

/* A server changes to each of its users in turn, and connects as this user. */
LONE_CASE(share_change_of_users)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	int listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
	long before = address_space_gigabytes();

	check(bind(listener, (struct sockaddr *)&address, length), "bind");
	check(listen(listener, 16), "listen");
	check(getsockname(listener, (struct sockaddr *)&address, &length), "getsockname");
	for (int i = 0; i < 1000; i++) {
		int fd = check(socket(AF_INET, SOCK_STREAM, 0), "socket");

		if (geteuid() == 0 || getuid() == 0)
			check(seteuid(i % 2 ? 0 : 65534), "seteuid");
		check(connect(fd, (struct sockaddr *)&address, sizeof address), "connect");
		close(check(accept(listener, NULL, NULL), "accept"));
		close(fd);
	}
	say("more than 500 GB: %d", address_space_gigabytes() - before > 500);
}
