/* Steps that make descriptors. */
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

/* Without TCP_NODELAY small pieces sometimes wait for acknowledgements. */
static void send_at_once(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int socket_by(enum way way, int family, int type)
{
	return (int)BY(way, socket(family, type, 0), SYS_socket, (long)family, (long)type, 0L);
}

static int bind_by(enum way way, int fd, const struct sockaddr_storage *address, socklen_t length)
{
	return (int)BY(way, bind(fd, (const struct sockaddr *)address, length), SYS_bind, fd,
		       address, (long)length);
}

static int connect_by(enum way way, int fd, const struct sockaddr_storage *address,
		      socklen_t length)
{
	if (way == OLD)
		return __connect(fd, (const struct sockaddr *)address, length);
	return (int)BY(way, connect(fd, (const struct sockaddr *)address, length), SYS_connect, fd,
		       address, (long)length);
}

static int open_listener(struct var *var, bool six, int flags, enum way way)
{
	struct sockaddr_storage address;
	socklen_t length = loopback(&address, six);
	int fd = socket_by(way, six ? AF_INET6 : AF_INET, SOCK_STREAM | flags);

	if (fd < 0 || bind_by(way, fd, &address, length) || listen(fd, 64) ||
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
	note_result(open_listener(var, number_of(step, "family", 4) == 6, flags_of(step),
				  way_of(step)));
}

static int connect_to(const struct var *listener, struct var *var, int fd, bool is_new,
		      enum way way)
{
	struct sockaddr_storage own_address;
	socklen_t length = sizeof own_address;
	int conn, error = 0;

	if (fd < 0)
		return -1;
	send_at_once(fd);
	if (connect_by(way, fd, &listener->address, listener->address_length)) {
		error = errno;
		if (error != EINPROGRESS) {
			if (is_new)
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
	return error ? -1 : fd;
}

/* connect LISTENER V: connects a new socket, or V's socket with `again`. */
static void do_connect(const struct step *step)
{
	const struct var *listener = var_at(step, 0);
	struct var *var = var_at(step, 1);
	enum way way = way_of(step);
	bool again = number_of(step, "again", 0);
	int fd = again ? var->fd
		       : socket_by(way, listener->address.ss_family, SOCK_STREAM | flags_of(step));

	note_result(connect_to(listener, var, fd, !again, way));
}

/* socket V: makes a socket without a connection. */
static void do_socket(const struct step *step)
{
	int fd = socket_by(way_of(step), number_of(step, "family", 4) == 6 ? AF_INET6 : AF_INET,
			   SOCK_STREAM | flags_of(step));

	be_file(var_at(step, 0), fd, TCP);
	note_result(fd);
}

/* bind V: binds to a port that the kernel chooses. */
static void do_bind(const struct step *step)
{
	struct sockaddr_storage address;
	socklen_t length = loopback(&address, number_of(step, "family", 4) == 6);

	note_result(bind_by(way_of(step), var_at(step, 0)->fd, &address, length));
}

/* disconnect V: connects to an address of AF_UNSPEC. */
static void do_disconnect(const struct step *step)
{
	struct sockaddr_storage nowhere = { .ss_family = AF_UNSPEC };
	struct var *var = var_at(step, 0);
	int result = connect_by(way_of(step), var->fd, &nowhere, sizeof(struct sockaddr_in));

	if (!result && var->kind == TCP)
		be_file(var, var->fd, TCP);
	else if (!result)
		var->out = -1;
	note_result(result);
}

static int accept_from(const struct var *listener, struct var *var, int flags, bool plain,
		       enum way way)
{
	struct sockaddr_storage peer;
	socklen_t length = sizeof peer;
	int conn = -1, fd;

	if (plain)
		fd = (int)BY(way, accept(listener->fd, (struct sockaddr *)&peer, &length),
			     SYS_accept, listener->fd, &peer, &length);
	else
		fd = (int)BY(way, accept4(listener->fd, (struct sockaddr *)&peer, &length, flags),
			     SYS_accept4, listener->fd, &peer, &length, (long)flags);
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
	return fd;
}

/* accept LISTENER NEW */
static void do_accept(const struct step *step)
{
	note_result(accept_from(var_at(step, 0), var_at(step, 1), flags_of(step),
				is(step, "call", "accept"), way_of(step)));
}

/* pair CONNECTOR ACCEPTOR: makes a connection with both ends in this process. */
static void do_pair(const struct step *step)
{
	struct var listener, *a = var_at(step, 0), *b = var_at(step, 1);
	int flags = flags_of(step) & SOCK_CLOEXEC;
	long result = open_listener(&listener, number_of(step, "family", 4) == 6, 0, PLAIN);

	if (result >= 0) {
		int fd = socket_by(PLAIN, listener.address.ss_family, SOCK_STREAM | flags);

		result = connect_to(&listener, a, fd, true, PLAIN);
		if (result >= 0)
			result = accept_from(&listener, b, flags, false, PLAIN);
		close(listener.fd);
	}
	if (result >= 0 && flags_of(step) & SOCK_NONBLOCK) {
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

/* warm A B rounds=: one process sends messages there and back, so that the connection moves to
 * memory. */
static void do_warm(const struct step *step)
{
	struct var *a = var_at(step, 0), *b = var_at(step, 1);
	long rounds = number_of(step, "rounds", 3), done = 0;
	char bytes[16];

	while (done < rounds && trip(a, b, bytes, 5) && trip(b, a, bytes, 9))
		done++;
	note(" = %ld", done);
}

/* socketpair A B: a pair of Unix sockets, which Weft does not carry. */
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
	int fd = socket_by(way_of(step), address.ss_family, SOCK_DGRAM | flags_of(step)), conn;

	if (fd < 0 || bind_by(way_of(step), fd, &address, length) ||
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
	note_result(fd);
}

/* udpconnect A B: A sends to B from now on. */
static void do_udpconnect(const struct step *step)
{
	struct var *a = var_at(step, 0), *b = var_at(step, 1);
	int result = connect_by(way_of(step), a->fd, &b->address, b->address_length);

	if (!result) {
		a->out = b->in;
		a->out_way = b->in_way;
	}
	note_result(result);
}

static void do_epoll(const struct step *step)
{
	enum way way = way_of(step);
	int fd = is(step, "call", "create") ? (int)BY(way, epoll_create(9), SYS_epoll_create, 9L)
					    : (int)BY(way, epoll_create1(0), SYS_epoll_create1, 0L);

	be_file(var_at(step, 0), fd, EPOLL);
	note_result(fd);
}

/* file V: makes a new file, which has a distinct pattern as connections have. */
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

/* content V: checks that a file has exactly the bytes that were written to it. */
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
		if (byte != byte_of(var->out, 0, length)) {
			note(" FOREIGN at %lu of a file", length);
			break;
		}
	note(" = %lu of %lu", length, way->sent);
	raw(SYS_close, fd, 0, 0, 0, 0, 0);
}

const struct named openings[] = {
	{ "listen", do_listen }, { "connect", do_connect },
	{ "socket", do_socket }, { "bind", do_bind }, { "disconnect", do_disconnect },
	{ "accept", do_accept }, { "pair", do_pair },
	{ "warm", do_warm },	 { "socketpair", do_socketpair },
	{ "pipe", do_pipe },	 { "udp", do_udp },
	{ "epoll", do_epoll },	 { "udpconnect", do_udpconnect },
	{ "file", do_file },	 { "content", do_content },
	{ NULL, NULL },
};
