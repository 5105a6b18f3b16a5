/*
 * One-sided and asynchronous operations on a connection that also carries an ordinary stream:
 *
 *	extended server SCENARIO PORT CLIENTS
 *	extended client SCENARIO PORT
 *
 * The server registers its memory for each client and sends the key over the stream. The comment
 * above a scenario's two functions says what it checks. Exits with status 0 if all checks pass.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <weft_socket.h>

enum {
	CLIENTS_MAX = 16,
	MEMORY = 1 << 20,
	VERSIONS = 2000,
	ADDITIONS = 20000,
	ROUNDS = 20000,
};

#define WORD sizeof(uint64_t)

/* The memory that the server registers for its clients. */
struct shared {
	_Atomic uint64_t version;
	_Atomic uint64_t counter;
	_Atomic uint64_t swapped;
	_Atomic uint64_t finished;
	/* The time after which each version was published. */
	_Atomic uint64_t published_ns[VERSIONS + 2];
};

static const struct weft_calls *weft;
static struct shared *shared;
static struct weft_key keys[CLIENTS_MAX];
static int clients[CLIENTS_MAX];
static int client_count;

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

static void expect(long found, long expected, const char *what)
{
	if (found != expected)
		die("%s: %ld instead of %ld", what, found, expected);
}

static uint64_t now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void send_all(int fd, const void *bytes, size_t length)
{
	if (send(fd, bytes, length, MSG_NOSIGNAL) != (ssize_t)length)
		die("send: %s", strerror(errno));
}

static void receive_all(int fd, void *bytes, size_t length)
{
	if (recv(fd, bytes, length, MSG_WAITALL) != (ssize_t)length)
		die("recv: %s", strerror(errno));
}

static void send_word(int fd, uint64_t word)
{
	send_all(fd, &word, sizeof(word));
}

static uint64_t receive_word(int fd)
{
	uint64_t word;

	receive_all(fd, &word, sizeof(word));
	return word;
}

static uint64_t get_word(int fd, const struct weft_key *key, size_t offset)
{
	uint64_t word;

	expect(weft->get(fd, key, offset, &word, sizeof(word)), 0, "get");
	return word;
}

/*
 * Strong coherency: while the server computes and calls no library, a client never gets a version
 * that is older than one that was published before the client's request.
 */
static void coherent_server(void)
{
	for (uint64_t version = 1; version <= VERSIONS; version++) {
		const uint64_t until = now_ns() + 50000;

		while (now_ns() < until)
			;
		atomic_store(&shared->version, version);
		atomic_store(&shared->published_ns[version], now_ns());
	}
	send_word(clients[0], VERSIONS);
	expect(receive_word(clients[0]), 1, "the client's last word");
}

static void coherent_client(int fd, const struct weft_key *key)
{
	const size_t published = offsetof(struct shared, published_ns);
	uint64_t last = 0, seen = 0;

	while (last < VERSIONS) {
		const uint64_t asked = now_ns();
		const uint64_t version = get_word(fd, key, offsetof(struct shared, version));
		const uint64_t newer = get_word(fd, key, published + (version + 1) * WORD);

		if (version < last)
			die("version %lu after %lu", version, last);
		if (newer && newer < asked)
			die("version %lu, when the next had been published before", version);
		seen += version != last;
		last = version;
	}
	expect(receive_word(fd), VERSIONS, "the server's last word");
	send_word(fd, 1);
	printf("saw %lu versions\n", seen);
}

/* Sums are exact although clients, their children and the server's own instructions add. */
static void count_server(void)
{
	for (int addition = 0; addition < ADDITIONS; addition++)
		atomic_fetch_add(&shared->counter, 1);
	for (int client = 0; client < client_count; client++)
		expect(receive_word(clients[client]), 1, "the end of a client");
	expect(atomic_load(&shared->counter), ADDITIONS * (1 + 2 * client_count), "the sum");
	expect(atomic_load(&shared->swapped), ADDITIONS / 10 * client_count, "swaps");
}

static void count(int fd, const struct weft_key *key)
{
	for (int addition = 0; addition < ADDITIONS; addition++)
		expect(weft->fetch_add(fd, key, offsetof(struct shared, counter), 1, NULL), 0,
		       "fetch_add");
}

static void count_client(int fd, const struct weft_key *key)
{
	const size_t place = offsetof(struct shared, swapped);
	const pid_t child = fork();
	uint64_t before, expected = 0;
	int status;

	if (child == 0) {
		count(fd, key);
		_exit(0);
	}
	count(fd, key);
	for (int swap = 0; swap < ADDITIONS / 10;) {
		expect(weft->compare_swap(fd, key, place, expected, expected + 1, &before), 0,
		       "compare_swap");
		swap += before == expected;
		expected = before == expected ? expected + 1 : before;
	}
	if (waitpid(child, &status, 0) != child || status)
		die("the child: %d", status);
	send_word(fd, 1);
}

/* Invalid operations fail with the errors that the header documents, and the stream goes on. */
static void refuse_server(void)
{
	const int fd = clients[0];
	static char ordinary[4096];
	struct weft_key key, more[WEFT_KEYS_MAX];
	void *other;
	int registered = 0, error;

	expect(weft->register_memory(fd, ordinary, sizeof(ordinary), WEFT_READ, &key), -EINVAL,
	       "memory that cannot be shared");
	expect(weft->register_memory(fd, shared, MEMORY + 1, WEFT_READ, &key), -EINVAL,
	       "too much");
	expect(weft->register_memory(fd, shared, 64, 8, &key), -EINVAL, "an unknown right");
	expect(weft->register_memory(1, shared, 64, 1, &key), -EOPNOTSUPP, "no socket");
	expect(weft->register_memory(fd, (char *)shared + 64, 64, WEFT_READ, &key), 0, "a part");
	send_all(fd, &key, sizeof(key));
	expect(receive_word(fd), 1, "the client's first word");
	expect(weft->deregister(fd, &keys[0]), 0, "deregister");
	expect(weft->deregister(fd, &keys[0]), -ENOKEY, "deregister again");
	send_word(fd, 2);
	expect(receive_word(fd), 3, "the client's second word");
	while (!(error = weft->register_memory(fd, shared, 64, 1, &more[registered])))
		registered++;
	expect(error, -ENOSPC, "a full table");
	expect(registered, WEFT_KEYS_MAX - 1, "registrations");
	expect(weft->allocate(1, &other), 0, "allocate");
	expect(weft->release(other), 0, "release");
	expect(weft->release(other), -EINVAL, "release again");
	expect(weft->allocate(0, &other), -EINVAL, "allocate nothing");
}

static void refuse_client(int fd, const struct weft_key *key)
{
	struct weft_key wrong = *key, part;
	uint64_t word = 7;
	char bytes[65] = {0};

	receive_all(fd, &part, sizeof(part));
	wrong.secret ^= 1;
	expect(weft->get(fd, &wrong, 0, &word, WORD), -ENOKEY, "a wrong secret");
	wrong = *key;
	wrong.index = 0xffffffff;
	expect(weft->get(fd, &wrong, 0, &word, WORD), -ENOKEY, "a wrong place");
	wrong = (struct weft_key){.length = MEMORY, .rights = 7, .index = 5};
	expect(weft->get(fd, &wrong, 0, &word, WORD), -ENOKEY, "a key of zeros");
	expect(weft->get(fd, key, MEMORY - 8, &word, WORD), 0, "the last word");
	expect(weft->get(fd, key, MEMORY - 7, &word, WORD), -ERANGE, "past the end");
	expect(weft->get(fd, key, UINT64_MAX - 3, &word, WORD), -ERANGE, "around the end");
	expect(weft->get(fd, key, 0, &word, 0), -EINVAL, "nothing");
	expect(weft->fetch_add(fd, key, 4, 1, NULL), -EINVAL, "a word that is not aligned");
	part.length = MEMORY;
	part.rights = 7;
	expect(weft->get(fd, &part, 0, bytes, 64), 0, "a part");
	expect(weft->get(fd, &part, 0, bytes, 65), -ERANGE, "more than the part");
	expect(weft->put(fd, &part, 0, bytes, 1), -EACCES, "put without the right");
	expect(weft->fetch_add(fd, &part, 0, 1, NULL), -EACCES, "add without the right");
	expect(weft->put(fd, key, 100, "stays", 5), 0, "put");
	send_word(fd, 1);
	expect(receive_word(fd), 2, "the server's word");
	expect(weft->get(fd, key, 0, &word, WORD), -ENOKEY, "a revoked key");
	expect(weft->put(fd, key, 0, &word, WORD), -ENOKEY, "a revoked key");
	expect(weft->get(fd, &part, 36, bytes, 5), 0, "the other key");
	expect(memcmp(bytes, "stays", 5), 0, "what was put");
	send_word(fd, 3);
}

/* Lists of buffers, completions, and posted operations that transfer bytes of the stream. */
static void post_server(void)
{
	const int fd = clients[0];
	static uint64_t words[MEMORY / 8];
	struct iovec pieces[] = {{words, 24}, {words + 3, sizeof(words) - 24}};
	struct weft_completion done;

	expect(weft->post_recv(fd, pieces, 2, 77), 0, "post_recv");
	expect(weft->wait(fd, &done, 1, 20000), 1, "wait");
	expect(done.id, 77, "id");
	expect(done.operation, WEFT_RECV, "operation");
	expect(done.result, sizeof(words), "received");
	for (size_t word = 0; word < sizeof(words) / WORD; word++)
		expect(words[word], word, "a word");
	/* The stream continues after the bytes of the posted receive. */
	expect(receive_word(fd), 99, "the next word");
	expect(weft->post_recv(fd, pieces, 1, 78), 0, "post_recv");
	send_word(fd, 1);
	expect(weft->wait(fd, &done, 1, 20000), 1, "wait for the end");
	expect(done.result, 8, "received before the end");
}

static void post_client(int fd, const struct weft_key *key)
{
	static uint64_t words[MEMORY / 8];
	struct iovec pieces[] = {{words, 16}, {words + 2, sizeof(words) - 16}};
	struct iovec scattered[] = {{(char[3]){0}, 3}, {(char[5]){0}, 5}};
	struct iovec gathered[] = {{"exten", 5}, {"ded", 3}};
	struct weft_completion done[8];
	uint64_t word = 99;
	struct iovec one = {&word, sizeof(word)};
	struct pollfd asked = {.fd = fd, .events = POLLOUT};
	int posted = 0, error;

	expect(weft->poll(fd, done, 8), 0, "nothing is posted");
	expect(weft->wait(fd, done, 8, -1), 0, "nothing is posted");
	expect(weft->post_put(fd, key, 8, gathered, 2, 1), 0, "post_put");
	expect(weft->post_get(fd, key, 8, scattered, 2, 2), 0, "post_get");
	expect(weft->post_fetch_add(fd, key, 4096, 5, 3), 0, "post_fetch_add");
	expect(weft->post_compare_swap(fd, key, 4096, 5, 9, 4), 0, "post_compare_swap");
	expect(weft->post_get(fd, key, MEMORY, scattered, 2, 5), 0, "post_get past the end");
	expect(weft->post_get(fd, key, 0, scattered, 17, 6), -EINVAL, "too many buffers");
	expect(weft->poll(fd, done, 3), 3, "poll");
	expect(weft->wait(fd, done + 3, 5, 0), 2, "wait");
	for (int at = 0; at < 5; at++) {
		expect(done[at].id, at + 1, "id");
		expect(done[at].result, at < 4 ? 8 : -ERANGE, "result");
	}
	expect(done[2].value, 0, "before the addition");
	expect(done[3].value, 5, "before the swap");
	expect(done[4].operation, WEFT_GET, "operation");
	expect(memcmp(scattered[0].iov_base, "ext", 3), 0, "the first buffer");
	expect(memcmp(scattered[1].iov_base, "ended", 5), 0, "the second buffer");
	expect(get_word(fd, key, 4096), 9, "after the swap");
	while (!(error = weft->post_fetch_add(fd, key, 4104, 1, 0)))
		posted++;
	expect(error, -EAGAIN, "a full queue");
	expect(posted, WEFT_POSTED_MAX, "posted");
	while (posted > 0)
		posted -= weft->poll(fd, done, 8);
	expect(get_word(fd, key, 4104), WEFT_POSTED_MAX, "posted additions");
	for (size_t at = 0; at < sizeof(words) / WORD; at++)
		words[at] = at;
	expect(weft->post_send(fd, pieces, 2, 7), 0, "post_send");
	expect(weft->post_send(fd, &one, 1, 8), 0, "post_send");
	for (int ended = 0; ended < 2;) {
		expect(poll(&asked, 1, 20000), 1, "writable");
		ended += weft->poll(fd, done + ended, 2 - ended);
	}
	expect(done[0].result, sizeof(words), "sent");
	expect(done[1].id, 8, "in order");
	expect(receive_word(fd), 1, "the server's word");
	send_word(fd, 5);
	shutdown(fd, SHUT_WR);
}

/* An end whose peer is killed or exits during operations gets an error. */
static void killed_server(void)
{
	struct weft_completion done;
	uint64_t word;
	struct iovec one = {&word, sizeof(word)};
	int fd = clients[0];

	puts("ready");
	fflush(stdout);
	/* When the client ends, this receive completes with an error or with EOF. */
	expect(weft->post_recv(fd, &one, 1, 1), 0, "post_recv");
	expect(weft->wait(fd, &done, 1, 20000), 1, "wait");
	if (done.result > 0)
		die("received %ld bytes", (long)done.result);
	expect(weft->deregister(fd, &keys[0]), 0, "deregister");
	puts("gone");
}

static void killed_client(int fd, const struct weft_key *key)
{
	static char block[65536];
	const uint64_t until = now_ns() + 20000000000ull;
	int error;

	while (!(error = weft->put(fd, key, 65536, block, sizeof(block))))
		if (now_ns() > until)
			die("nothing has happened");
	expect(error, -ECONNRESET, "the server was killed");
	puts("reset");
}

/* When a program executes another one, its registrations and the extended mode end. Its sockets
 * stay open. */
static void exec_server(void)
{
	char fd[16];

	expect(receive_word(clients[0]), 1, "the client's word");
	snprintf(fd, sizeof(fd), "%d", clients[0]);
	execl("/proc/self/exe", "extended", "resume", "exec", fd, NULL);
	die("exec: %s", strerror(errno));
}

static void resume(int fd)
{
	if (!weft_extend(fd, &weft))
		die("the connection is still in memory");
	send_word(fd, 2);
	expect(receive_word(fd), 3, "the client's word");
}

static void exec_client(int fd, const struct weft_key *key)
{
	uint64_t word;

	expect(get_word(fd, key, 0), 0, "before");
	send_word(fd, 1);
	expect(receive_word(fd), 2, "the server's word");
	expect(weft->get(fd, key, 0, &word, WORD), -ENOKEY, "after");
	send_word(fd, 3);
}

/* Measures an operation, and a word that is sent and answered over the same socket. */
static void speed_server(void)
{
	for (int round = 0; round < ROUNDS; round++)
		send_word(clients[0], receive_word(clients[0]));
	receive_word(clients[0]);
}

static void print_time(const char *what, uint64_t began)
{
	printf("%-10s %7.0f ns\n", what, (now_ns() - began) / (double)ROUNDS);
}

static void speed_client(int fd, const struct weft_key *key)
{
	uint64_t began = now_ns(), word = 0;

	for (int round = 0; round < ROUNDS; round++) {
		send_word(fd, round);
		expect(receive_word(fd), round, "the answer");
	}
	print_time("send+recv", began);
	began = now_ns();
	for (int round = 0; round < ROUNDS; round++)
		word += get_word(fd, key, 0);
	print_time("get", began);
	began = now_ns();
	for (int round = 0; round < ROUNDS; round++)
		expect(weft->put(fd, key, 0, &word, WORD), 0, "put");
	print_time("put", began);
	began = now_ns();
	for (int round = 0; round < ROUNDS; round++)
		expect(weft->fetch_add(fd, key, 8, 1, &word), 0, "fetch_add");
	print_time("fetch_add", began);
	expect(word, ROUNDS - 1, "the count");
	send_word(fd, 0);
}

/* Without Weft at both ends the socket stays an ordinary one. */
static void plain_server(void)
{
}

static void plain_client(int fd, const struct weft_key *key)
{
	(void)fd;
	(void)key;
}

static const struct scenario {
	const char *name;
	void (*server)(void);
	void (*client)(int fd, const struct weft_key *key);
} scenarios[] = {
	{"coherent", coherent_server, coherent_client},
	{"count", count_server, count_client},
	{"refuse", refuse_server, refuse_client},
	{"post", post_server, post_client},
	{"killed", killed_server, killed_client},
	{"exec", exec_server, exec_client},
	{"speed", speed_server, speed_client},
	{"plain", plain_server, plain_client},
};

/* Switches to the extended mode. In the plain scenario this must fail, and the stream goes on. */
static void extend(int fd, const struct scenario *scenario)
{
	const int error = weft_extend(fd, &weft);

	if (scenario->client == plain_client) {
		if (error != -ENOPROTOOPT && error != -EOPNOTSUPP && error != -ETIMEDOUT)
			die("weft_extend: %s", strerror(-error));
		send_word(fd, 4);
		expect(receive_word(fd), 4, "over TCP");
		puts("plain");
		exit(0);
	}
	if (error)
		die("weft_extend: %s", strerror(-error));
	expect(weft->size, sizeof(*weft), "the size of the calls");
}

static void serve(const struct scenario *scenario, const struct sockaddr_in *address)
{
	const int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	void *memory;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(listener, (const void *)address, sizeof(*address)) || listen(listener, 16))
		die("bind: %s", strerror(errno));
	for (int client = 0; client < client_count; client++) {
		const int fd = accept(listener, NULL, NULL);

		if (fd < 0)
			die("accept: %s", strerror(errno));
		clients[client] = fd;
		extend(fd, scenario);
		if (client == 0) {
			expect(weft->allocate(MEMORY, &memory), 0, "allocate");
			shared = memory;
		}
		expect(weft->register_memory(fd, shared, MEMORY,
					     WEFT_READ | WEFT_WRITE | WEFT_ATOMIC, &keys[client]),
		       0, "register");
	}
	for (int client = 0; client < client_count; client++)
		send_all(clients[client], &keys[client], sizeof(keys[client]));
	scenario->server();
}

static void ask(const struct scenario *scenario, const struct sockaddr_in *address)
{
	const int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	struct weft_key key;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (connect(fd, (const void *)address, sizeof(*address)))
		die("connect: %s", strerror(errno));
	extend(fd, scenario);
	receive_all(fd, &key, sizeof(key));
	scenario->client(fd, &key);
}

int main(int count, char **words)
{
	struct sockaddr_in address = {.sin_family = AF_INET};

	if (count < 4)
		die("extended server|client SCENARIO PORT [CLIENTS]");
	if (strcmp(words[1], "resume") == 0) {
		resume(atoi(words[3]));
		return 0;
	}
	address.sin_port = htons(atoi(words[3]));
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	client_count = count > 4 ? atoi(words[4]) : 1;
	if (client_count < 1 || client_count > CLIENTS_MAX)
		die("1 to %d clients", CLIENTS_MAX);
	for (size_t at = 0; at < sizeof(scenarios) / sizeof(*scenarios); at++) {
		if (strcmp(scenarios[at].name, words[2]) != 0)
			continue;
		if (strcmp(words[1], "server") == 0)
			serve(&scenarios[at], &address);
		else
			ask(&scenarios[at], &address);
		return 0;
	}
	die("no scenario %s", words[2]);
}
