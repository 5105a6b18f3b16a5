/* What makes descriptors. */
#include "world.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

static socklen_t loopback(struct sockaddr_storage *address, bool six)
{
	memset(address, 0, sizeof *address);
	if (six) {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)address;

		in6->sin6_family = AF_INET6;
		in6->sin6_addr = in6addr_loopback;
		return sizeof *in6;
	}
	((struct sockaddr_in *)address)->sin_family = AF_INET;
	((struct sockaddr_in *)address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return sizeof(struct sockaddr_in);
}

static in_port_t port_of(const struct sockaddr_storage *address)
{
	return ((const struct sockaddr_in *)address)->sin_port;
}

/* Small pieces would wait for acknowledgements, some of the time. */
static void send_at_once(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int open_listener(struct var *var, bool six, int flags)
{
	struct sockaddr_storage address;
	socklen_t length = loopback(&address, six);
	int fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | flags, 0);

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) || listen(fd, 64) ||
	    getsockname(fd, (struct sockaddr *)&address, &length))
		return -1;
	be_file(var, fd, LISTENER);
	var->address = address;
	var->address_length = length;
	return fd;
}

static int flags_of(const struct step *step)
{
	const char *flags = text_of(step, "open", "");

	return (strstr(flags, "NONBLOCK") ? SOCK_NONBLOCK : 0) |
	       (strstr(flags, "CLOEXEC") ? SOCK_CLOEXEC : 0);
}

static void do_listen(const struct step *step)
{
	struct var *var = var_at(step, 0);
	int fd = open_listener(var, number_of(step, "family", 4) == 6, flags_of(step));

	note_result(fd < 0 ? fd : 0);
}

static int connect_to(const struct var *listener, struct var *var, int flags)
{
	struct sockaddr_storage own_address;
	socklen_t length = sizeof own_address;
	int conn, error = 0, fd = socket(listener->address.ss_family, SOCK_STREAM | flags, 0);

	if (fd < 0)
		return -1;
	send_at_once(fd);
	if (connect(fd, (const struct sockaddr *)&listener->address, listener->address_length)) {
		error = errno;
		if (error != EINPROGRESS) {
			close(fd);
			errno = error;
			return -1;
		}
	}
	conn = new_conn(false);
	getsockname(fd, (struct sockaddr *)&own_address, &length);
	world->conns[conn].port = port_of(&own_address);
	be_stream(var, fd, TCP, conn, 0);
	errno = error;
	return error ? -1 : 0;
}

/* connect LISTENER NEW */
static void do_connect(const struct step *step)
{
	note_result(connect_to(var_at(step, 0), var_at(step, 1), flags_of(step)));
}

static int accept_from(const struct var *listener, struct var *var, int flags, bool plain)
{
	struct sockaddr_storage peer;
	socklen_t length = sizeof peer;
	int conn = -1, fd;

	fd = plain ? accept(listener->fd, (struct sockaddr *)&peer, &length)
		   : accept4(listener->fd, (struct sockaddr *)&peer, &length, flags);
	if (fd < 0)
		return -1;
	send_at_once(fd);
	for (int i = 0; i < CONNS; i++)
		if (world->conns[i].port && world->conns[i].port == port_of(&peer))
			conn = i;
	if (conn < 0)
		be_file(var, fd, TCP);
	else
		be_stream(var, fd, TCP, conn, 1);
	return 0;
}

/* accept LISTENER NEW */
static void do_accept(const struct step *step)
{
	note_result(accept_from(var_at(step, 0), var_at(step, 1), flags_of(step),
				is(step, "call", "accept")));
}

/* pair CONNECTOR ACCEPTOR: a connection both of whose ends this process has. */
static void do_pair(const struct step *step)
{
	struct var listener, *a = var_at(step, 0), *b = var_at(step, 1);
	long result = open_listener(&listener, number_of(step, "family", 4) == 6, 0);

	if (result >= 0) {
		result = connect_to(&listener, a, flags_of(step) & SOCK_CLOEXEC);
		if (!result)
			result = accept_from(&listener, b, flags_of(step) & SOCK_CLOEXEC, false);
		close(listener.fd);
	}
	if (!result && flags_of(step) & SOCK_NONBLOCK) {
		fcntl(a->fd, F_SETFL, O_RDWR | O_NONBLOCK);
		fcntl(b->fd, F_SETFL, O_RDWR | O_NONBLOCK);
	}
	note_result(result);
}

static bool trip(struct var *from, struct var *to, char *bytes, long length)
{
	long sent, got;

	begin_send(from, bytes, length);
	sent = send(from->fd, bytes, length, MSG_NOSIGNAL);
	end_send(from, sent);
	got = recv(to->fd, bytes, length, MSG_WAITALL);
	return sent == length && got == length && check_received(to, bytes, got, false);
}

/* warm A B rounds=: messages to and fro by one process, which move the connection to memory. */
static void do_warm(const struct step *step)
{
	struct var *a = var_at(step, 0), *b = var_at(step, 1);
	long rounds = number_of(step, "rounds", 3), done = 0;
	char bytes[16];

	while (done < rounds && trip(a, b, bytes, 5) && trip(b, a, bytes, 9))
		done++;
	note(" = %ld", done);
}

/* socketpair A B, as strangers between others. */
static void do_socketpair(const struct step *step)
{
	int fds[2], conn;

	if (socketpair(AF_UNIX, SOCK_STREAM | flags_of(step), 0, fds)) {
		note_result(-1);
		return;
	}
	conn = new_conn(false);
	be_stream(var_at(step, 0), fds[0], STRANGER, conn, 0);
	be_stream(var_at(step, 1), fds[1], STRANGER, conn, 1);
	note_result(0);
}

/* pipe READING WRITING */
static void do_pipe(const struct step *step)
{
	int fds[2], conn;

	if (pipe2(fds, (strstr(text_of(step, "open", ""), "NONBLOCK") ? O_NONBLOCK : 0))) {
		note_result(-1);
		return;
	}
	conn = new_conn(false);
	be_stream(var_at(step, 0), fds[0], PIPE, conn, 0);
	be_stream(var_at(step, 1), fds[1], PIPE, conn, 1);
	note_result(0);
}

static void do_udp(const struct step *step)
{
	struct var *var = var_at(step, 0);
	struct sockaddr_storage address;
	socklen_t length = loopback(&address, number_of(step, "family", 4) == 6);
	int fd = socket(address.ss_family, SOCK_DGRAM | flags_of(step), 0), conn;

	if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) ||
	    getsockname(fd, (struct sockaddr *)&address, &length)) {
		note_result(-1);
		return;
	}
	conn = new_conn(true);
	be_file(var, fd, UDP);
	var->packets = true;
	var->in = (int16_t)conn;
	var->address = address;
	var->address_length = length;
	note_result(0);
}

/* udpconnect A B: A sends to B from now on. */
static void do_udpconnect(const struct step *step)
{
	struct var *a = var_at(step, 0), *b = var_at(step, 1);
	int result = connect(a->fd, (struct sockaddr *)&b->address, b->address_length);

	if (!result) {
		a->out = b->in;
		a->out_way = b->in_way;
	}
	note_result(result);
}

static void do_epoll(const struct step *step)
{
	int fd = epoll_create1(0);

	be_file(var_at(step, 0), fd, EPOLL);
	note_result(fd < 0 ? fd : 0);
}

/* file V: a new file, which has a pattern of its own as connections do. */
static void do_file(const struct step *step)
{
	char path[240];
	int conn, fd;

	snprintf(path, sizeof path, "%s/file%d", world->folder, index_at(step, 0));
	unlink(path);
	fd = open(path, O_RDWR | O_CREAT, 0666);
	if (fd < 0) {
		note_result(-1);
		return;
	}
	world->files[index_at(step, 0)] = true;
	conn = new_conn(false);
	be_stream(var_at(step, 0), fd, PLAIN_FILE, conn, 0);
	var_at(step, 0)->in_way = 0;
	note_result(0);
}

/* content V: whether a file has all that was written to it, and nothing else. */
static void do_content(const struct step *step)
{
	struct var *var = var_at(step, 0);
	const struct direction *way = var->out < 0 ? NULL : &world->conns[var->out].way[0];
	char path[240], byte;
	uint64_t length = 0;
	long fd;

	snprintf(path, sizeof path, "%s/file%d", world->folder, index_at(step, 0));
	fd = raw(SYS_openat, AT_FDCWD, (long)path, O_RDONLY, 0, 0, 0);
	if (fd < 0 || !way) {
		note(" = no file");
		return;
	}
	for (; raw(SYS_read, fd, (long)&byte, 1, 0, 0, 0) == 1; length++)
		if (byte != pattern(var->out, 0, length)) {
			note(" FOREIGN at %lu of a file", length);
			break;
		}
	note(" = %lu of %lu", length, way->sent);
	raw(SYS_close, fd, 0, 0, 0, 0, 0);
}

const struct named openings[] = {
	{ "listen", do_listen }, { "connect", do_connect },
	{ "accept", do_accept }, { "pair", do_pair },
	{ "warm", do_warm },	 { "socketpair", do_socketpair },
	{ "pipe", do_pipe },	 { "udp", do_udp },
	{ "epoll", do_epoll },	 { "udpconnect", do_udpconnect },
	{ "file", do_file },	 { "content", do_content },
	{ NULL, NULL },
};
