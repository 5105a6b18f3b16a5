/*
 * Sends from buffers that the program changes after each send has returned.
 *
 *   deferred_sends SEED SECONDS
 *
 * A child sends, the parent receives. The bytes of the stream follow from their positions, so the
 * receiver can check them. The program ends with status 0 if no byte was wrong or missing, and if
 * the receiver never got an EOF before all bytes of a killed sender.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, BLOCK = 1 << 20, ROUNDS = 24 };

static uint64_t state;

static uint64_t chance(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static size_t between(size_t low, size_t high)
{
	return low + chance() % (high - low);
}

static void fail(const char *what)
{
	fprintf(stderr, "deferred_sends (%d): %s: %s\n", getpid(), what, strerror(errno));
	abort();
}

#define CHECK(good) ((good) ? (void)0 : fail(#good))

/* Returns the byte of the stream at a position. */
static unsigned char expected(uint64_t position)
{
	return (unsigned char)((position * 0x9e3779b97f4a7c15u) >> 37);
}

static void fill(unsigned char *to, size_t length, uint64_t position)
{
	for (size_t at = 0; at < length; at++)
		to[at] = expected(position + at);
}

static void send_all(int fd, const unsigned char *from, size_t length)
{
	while (length > 0) {
		ssize_t sent = send(fd, from, length, MSG_NOSIGNAL);
		if (sent < 0 && errno == EAGAIN) {
			struct pollfd one = { .fd = fd, .events = POLLOUT };
			CHECK(poll(&one, 1, 10000) == 1);
			continue;
		}
		CHECK(sent > 0);
		from += sent;
		length -= (size_t)sent;
	}
}

/* Exchanges bytes on a new connection, so that both ends know that the other runs on Weft. */
static void greet(int fd, int first)
{
	char byte = 'x';
	for (int turn = 0; turn < 6; turn++) {
		if ((turn & 1) == first)
			CHECK(send(fd, &byte, 1, 0) == 1);
		else
			CHECK(recv(fd, &byte, 1, 0) == 1);
	}
}

/* Ways to change the memory of a message that has just been sent. */

static void overwrite(unsigned char *block, size_t length)
{
	for (int count = 0; count < 5; count++)
		block[chance() % length] ^= 0xff;
}

static void overwrite_all(unsigned char *block, size_t length)
{
	memset(block, 0xee, length);
}

static void read_into(unsigned char *block, size_t length)
{
	int ends[2];
	size_t at = chance() % length, wanted = length - at < 9000 ? length - at : 9000;
	char noise[9000];
	memset(noise, 0x55, sizeof noise);
	if (chance() & 1)
		CHECK(pipe(ends) == 0);
	else
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	CHECK(write(ends[1], noise, wanted) == (ssize_t)wanted);
	if (chance() & 1) {
		CHECK(read(ends[0], block + at, wanted) == (ssize_t)wanted);
	} else {
		struct iovec parts[2] = { { block + at, wanted / 2 },
					  { block + at + wanted / 2, wanted - wanted / 2 } };
		CHECK(readv(ends[0], parts, 2) == (ssize_t)wanted);
	}
	CHECK(memcmp(block + at, noise, wanted) == 0);
	close(ends[0]);
	close(ends[1]);
}

static volatile sig_atomic_t handled;

static void on_signal(int number)
{
	(void)number;
	handled = 1;
}

/* The kernel writes to the memory without a hook's knowledge: for a direct system call, for a call
 * within the C library, or as the frame of a signal. */
static void write_unseen(unsigned char *block, size_t length)
{
	enum { STACK = 64 << 10 };
	if (length < 2 * STACK)
		return;
	stack_t stack = { .ss_sp = block + length - STACK, .ss_size = STACK }, before;
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };
	FILE *zeros;
	switch (chance() % 3) {
	case 0:
		/* A stop of the process cuts the call short. */
		for (size_t at = 0; at < length / 2;) {
			long filled = syscall(SYS_getrandom, block + at, length / 2 - at, 0);
			CHECK(filled > 0 || (filled < 0 && errno == EINTR));
			at += filled > 0 ? (size_t)filled : 0;
		}
		break;
	case 1:
		zeros = fopen("/dev/zero", "r");
		CHECK(zeros != NULL && fread(block, 1, length, zeros) == length);
		for (size_t at = 0; at < length; at++)
			CHECK(block[at] == 0);
		fclose(zeros);
		break;
	default:
		handled = 0;
		CHECK(sigaltstack(&stack, &before) == 0);
		CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0);
		CHECK(handled && sigaltstack(&before, NULL) == 0);
	}
}

static void fork_and_overwrite(unsigned char *block, size_t length)
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		overwrite_all(block, length);
		_exit(0);
	}
	overwrite_all(block, length / 2);
	CHECK(waitpid(child, NULL, 0) == child);
}

static void leave_alone(unsigned char *block, size_t length)
{
	(void)block;
	(void)length;
}

static void (*const TREATMENTS[])(unsigned char *, size_t) = {
	overwrite,	    overwrite_all, read_into,	write_unseen,
	fork_and_overwrite, leave_alone,   leave_alone,
};

/* Ways to allocate memory and to free it. */

static unsigned char *mapped(size_t length)
{
	unsigned char *block = mmap(NULL, length, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(block != MAP_FAILED);
	return block;
}

static uint64_t send_from_heap(int fd, uint64_t position)
{
	size_t length = between(1, 3 * BLOCK);
	unsigned char *block = malloc(length);
	CHECK(block != NULL);
	fill(block, length, position);
	send_all(fd, block, length);
	if (chance() & 1) {
		block = realloc(block, length * 2);
		CHECK(block != NULL);
		memset(block, 0x77, length);
	}
	free(block);
	return length;
}

static uint64_t send_from_mapping(int fd, uint64_t position)
{
	size_t length = between(1, 3 * BLOCK), room = (length + PAGE - 1) / PAGE * PAGE;
	unsigned char *block = mapped(room);
	fill(block, length, position);
	send_all(fd, block, length);
	switch (chance() % 5) {
	case 0:
		CHECK(munmap(block, room) == 0);
		return length;
	case 1:
		CHECK(madvise(block, room, MADV_DONTNEED) == 0);
		CHECK(block[length / 2] == 0);
		break;
	case 2:
		block = mremap(block, room, room * 2, MREMAP_MAYMOVE);
		CHECK(block != MAP_FAILED);
		room *= 2;
		memset(block, 0x66, room);
		break;
	case 3:
		CHECK(mmap(block, room, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == block);
		break;
	default:
		CHECK(mprotect(block, room, PROT_NONE) == 0);
		break;
	}
	CHECK(munmap(block, room) == 0);
	return length;
}

static void *stop_waiting(void *fd)
{
	usleep(400);
	CHECK(fcntl(*(int *)fd, F_SETFL, O_RDWR | O_NONBLOCK) == 0);
	return NULL;
}

/* Another thread makes a waiting call return early. The program may then overwrite the bytes that
 * the call has sent. */
static uint64_t send_and_stop(int fd, uint64_t position)
{
	static unsigned char *block;
	pthread_t other;
	size_t length = between(3 * BLOCK, 6 * BLOCK);
	if (block == NULL)
		block = mapped(6 * BLOCK);
	fill(block, length, position);
	CHECK(!pthread_create(&other, NULL, stop_waiting, &fd));
	ssize_t sent = send(fd, block, length, MSG_NOSIGNAL);
	if (sent < 0 && errno == EAGAIN)
		sent = 0;
	CHECK(sent >= 0);
	memset(block, 0x22, (size_t)sent);
	CHECK(pthread_join(other, NULL) == 0 && fcntl(fd, F_SETFL, O_RDWR) == 0);
	send_all(fd, block + sent, length - (size_t)sent);
	memset(block, 0x11, length);
	return length;
}

/* Weft must not defer a send from memory that is also mapped elsewhere. */
static uint64_t send_from_shared(int fd, uint64_t position)
{
	size_t length = between(BLOCK / 4, 2 * BLOCK), room = (length + PAGE - 1) / PAGE * PAGE;
	int file = memfd_create("shared", 0);
	CHECK(file >= 0 && ftruncate(file, (off_t)room) == 0);
	unsigned char *one = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	unsigned char *two = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(one != MAP_FAILED && two != MAP_FAILED);
	fill(one, length, position);
	send_all(fd, one, length);
	memset(two, 0x44, length);
	munmap(one, room);
	munmap(two, room);
	close(file);
	return length;
}

static uint64_t send_from_stack(int fd, uint64_t position)
{
	unsigned char block[BLOCK / 2];
	fill(block, sizeof block, position);
	send_all(fd, block, sizeof block);
	return sizeof block;
}

/* Sends a header with a body, and small messages after a long one. */
static uint64_t send_in_parts(int fd, uint64_t position)
{
	static unsigned char body[BLOCK + 100];
	unsigned char header[300], trailer[20000];
	size_t length = between(70000, sizeof body), tail = between(1, sizeof trailer);
	fill(header, sizeof header, position);
	fill(body, length, position + sizeof header);
	fill(trailer, tail, position + sizeof header + length);
	struct iovec parts[3] = { { header, sizeof header }, { body, length }, { trailer, tail } };
	size_t all = sizeof header + length + tail;
	ssize_t sent = writev(fd, parts, 3);
	if (sent < 0 && errno == EAGAIN)
		sent = 0;
	CHECK(sent >= 0);
	for (int index = 0; index < 3; index++) {
		size_t skip = (size_t)sent < parts[index].iov_len ? (size_t)sent
								  : parts[index].iov_len;
		sent -= (ssize_t)skip;
		send_all(fd, (unsigned char *)parts[index].iov_base + skip,
			 parts[index].iov_len - skip);
	}
	memset(body, 0x33, length);
	return all;
}

static uint64_t send_and_treat(int fd, uint64_t position)
{
	static unsigned char *block;
	if (block == NULL)
		block = mapped(4 * BLOCK);
	size_t offset = between(0, 2 * PAGE), length = between(1, 3 * BLOCK);
	fill(block + offset, length, position);
	send_all(fd, block + offset, length);
	TREATMENTS[chance() % (sizeof TREATMENTS / sizeof *TREATMENTS)](block + offset, length);
	return length;
}

static uint64_t (*const SENDERS[])(int, uint64_t) = {
	send_and_treat, send_and_treat,	 send_and_treat,   send_from_heap,
	send_in_parts,	send_from_mapping, send_from_shared, send_from_stack, send_and_stop,
};

/* One of two threads that send the same pages at the same time on different connections. */
struct twin {
	int fd;
	const unsigned char *block;
};

static void *send_twin(void *argument)
{
	struct twin *twin = argument;
	send_all(twin->fd, twin->block, BLOCK);
	return NULL;
}

static void *receive_twin(void *argument)
{
	static _Thread_local unsigned char block[BLOCK];
	struct twin *twin = argument;
	size_t done = 0;
	while (done < BLOCK) {
		ssize_t received = recv(twin->fd, block + done, BLOCK - done, 0);
		CHECK(received > 0);
		done += (size_t)received;
	}
	CHECK(memcmp(block, twin->block, BLOCK) == 0);
	return NULL;
}

static void connect_pair(int ends[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	char byte = 'x';
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
	CHECK(listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	ends[0] = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(ends[0], (struct sockaddr *)&address, sizeof address) == 0);
	ends[1] = accept(listener, NULL, NULL);
	CHECK(ends[1] >= 0);
	close(listener);
	for (int turn = 0; turn < 6; turn++) {
		CHECK(send(ends[turn & 1], &byte, 1, 0) == 1);
		CHECK(recv(ends[!(turn & 1)], &byte, 1, 0) == 1);
	}
}

static void twins(void)
{
	int ends[2][2];
	unsigned char *block = mapped(BLOCK + PAGE) + 100, *original = malloc(BLOCK);
	CHECK(original != NULL);
	for (int index = 0; index < 2; index++)
		connect_pair(ends[index]);
	for (int round = 0; round < 40; round++) {
		pthread_t senders[2], receivers[2];
		struct twin out[2], in[2];
		fill(block, BLOCK, (uint64_t)round << 20);
		memcpy(original, block, BLOCK);
		for (int index = 0; index < 2; index++) {
			out[index] = (struct twin){ ends[index][0], block };
			in[index] = (struct twin){ ends[index][1], original };
			CHECK(!pthread_create(&senders[index], NULL, send_twin, &out[index]));
			/* Sometimes a receiver has pulled one message before the other is sent. */
			CHECK(!pthread_create(&receivers[index], NULL, receive_twin, &in[index]));
		}
		for (int index = 0; index < 2; index++)
			CHECK(pthread_join(senders[index], NULL) == 0);
		overwrite(block, BLOCK);
		for (int index = 0; index < 2; index++)
			CHECK(pthread_join(receivers[index], NULL) == 0);
	}
	free(original);
	for (int index = 0; index < 4; index++)
		close(ends[index / 2][index % 2]);
}

/* Ways in which the sender ends. Except with SHUTDOWN it does not wait for the receiver. */
enum ending { EXIT, EXIT_AT_ONCE, CLOSE, SHUTDOWN, EXEC, KILLED, KILLED_UNREAD, ENDINGS };

static void end(int fd, enum ending how)
{
	char byte;
	switch (how) {
	case EXIT:
		exit(0);
	case EXIT_AT_ONCE:
		_exit(0);
	case CLOSE:
		close(fd);
		_exit(0);
	case SHUTDOWN:
		CHECK(shutdown(fd, SHUT_WR) == 0);
		CHECK(recv(fd, &byte, 1, 0) == 0);
		exit(0);
	case EXEC:
		execv("/bin/true", (char *[]){ "true", NULL });
		fail("execv");
		break;
	default:
		raise(SIGKILL);
	}
}

static void sender(int fd, enum ending how, int report)
{
	uint64_t position = 0;
	for (int round = 0; round < ROUNDS && how != KILLED_UNREAD; round++)
		position += SENDERS[chance() % (sizeof SENDERS / sizeof *SENDERS)](fd, position);
	/* A long message is in flight when the sender ends. */
	unsigned char *block = mapped(BLOCK);
	fill(block, BLOCK, position);
	send_all(fd, block, BLOCK);
	position += BLOCK;
	CHECK(write(report, &position, sizeof position) == sizeof position);
	end(fd, how);
}

static uint64_t receive(int fd, int *error)
{
	static unsigned char block[2 * BLOCK];
	uint64_t position = 0;
	for (;;) {
		size_t wanted = chance() % 4 == 0 ? between(1, 3000) : between(1, sizeof block);
		int flags = chance() % 8 == 0 ? MSG_WAITALL : 0;
		ssize_t received = recv(fd, block, wanted, flags);
		*error = received < 0 ? errno : 0;
		if (received <= 0)
			return position;
		for (ssize_t at = 0; at < received; at++)
			if (block[at] != expected(position + (uint64_t)at)) {
				fprintf(stderr, "byte %llu is wrong\n",
					(unsigned long long)position + (unsigned long long)at);
				abort();
			}
		position += (uint64_t)received;
		if (chance() % 16 == 0)
			usleep(6000);
	}
}

static void round_of(enum ending how)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
	CHECK(listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	int report[2];
	CHECK(pipe(report) == 0);
	uint64_t seed = chance();
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		state = seed;
		close(listener);
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
		greet(fd, 0);
		sender(fd, how, report[1]);
	}
	int fd = accept(listener, NULL, NULL), error, status;
	CHECK(fd >= 0);
	close(listener);
	greet(fd, 1);
	siginfo_t died;
	if (how == KILLED_UNREAD)
		CHECK(waitid(P_PID, (id_t)child, &died, WEXITED | WNOWAIT) == 0);
	uint64_t received = receive(fd, &error), sent;
	if (how == SHUTDOWN)
		close(fd);
	CHECK(waitpid(child, &status, 0) == child);
	if (how >= KILLED)
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	else
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(read(report[0], &sent, sizeof sent) == sizeof sent);
	printf("ending %d: %llu of %llu bytes, error %d\n", how, (unsigned long long)received,
	       (unsigned long long)sent, error);
	fflush(stdout);
	if (how >= KILLED)
		CHECK(received == sent || (received < sent && error == ECONNRESET));
	else
		CHECK(received == sent && error == 0);
	if (how != SHUTDOWN)
		close(fd);
	close(report[0]);
	close(report[1]);
}

int main(int count, char **arguments)
{
	CHECK(count == 3);
	state = strtoull(arguments[1], NULL, 10) * 2 + 1;
	signal(SIGPIPE, SIG_IGN);
	int fault = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (fault < 0)
		puts("no userfaultfd");
	else
		close(fault);
	time_t limit = time(NULL) + atoi(arguments[2]);
	for (int round = 0; round < ENDINGS || time(NULL) < limit; round++)
		round_of((enum ending)(round % ENDINGS));
	twins();
	return 0;
}
