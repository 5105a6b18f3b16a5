/*
 * Peers that are killed or stopped at a random time of a connection's life.
 *
 *   peer_death survive ROLE END PORT ROUNDS SEED
 *
 * ROLE: `serve` answers peers that dial, `dial` connects to peers that listen. END: `kill` or
 * `stop`. Each round starts a peer (this program again). Both sides send, write, read and do
 * atomics at once, until the peer ends after a random time, perhaps before there is a connection.
 * SEED chooses these times.
 * In a bounded time the survivor must learn that its peer was killed, or must be able to close its
 * side if the peer was stopped. In the end no descriptors or mappings of the connections may be
 * left. The survivor prints
 *
 *   rounds: N connected: N
 *   left: N ms                 the longest time that closing took
 *   early: descriptors N mappings N
 *   end: descriptors N mappings N
 *
 * and exits with status 0.
 */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lab.h"

enum {
	DEPTH = 8,
	SMALL = 64,
	LARGE = 64 << 10,
	MEMORY = 4 * DEPTH * LARGE,
	LIFE_US_MAX = 60000,
	EARLY = 10,
	/* A dead peer's request may arrive late, at the same time as the next peer's. */
	PEERS_MAX = 4,
	/* Longer than Weft keeps closed connections. */
	SETTLE_US = 2500000,
	LEAK_S = 240, /* what is left for so long has leaked */
};

/* Seconds that a survivor may wait for the event of its peer's end. */
static const double TIMEOUT_S = 240;

extern char **environ;

struct offer {
	uint64_t address;
	uint32_t key;
} __attribute__((packed));

struct connection {
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct offer peer;
	unsigned long posted;
	int outstanding;
	bool established, over, failed;
};

static struct rdma_event_channel *channel;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char *memory;
static struct connection connections[PEERS_MAX];

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static int descriptors(void)
{
	DIR *directory = check_pointer(opendir("/proc/self/fd"), "/proc/self/fd");
	int count = 0;

	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

static int mappings(void)
{
	FILE *maps = check_pointer(fopen("/proc/self/maps", "r"), "/proc/self/maps");
	char line[512];
	int count = 0;

	while (fgets(line, sizeof line, maps))
		count += !!strstr(line, "/memfd:weft");
	fclose(maps);
	return count;
}

static void tell_resources(const char *when)
{
	printf("%s: descriptors %d mappings %d\n", when, descriptors(), mappings());
	fflush(stdout);
}

/* Waits until there is no more than that, or for so long that what is left has leaked. */
static void settle(int descriptors_max, int mappings_max)
{
	for (double end = now() + LEAK_S; now() < end; usleep(SETTLE_US / 10))
		if (descriptors() <= descriptors_max && mappings() <= mappings_max)
			return;
}

/* On a connection that is ending this may fail, which is not an error of the program. */
static void post_receive(struct connection *connection)
{
	struct ibv_sge sge = { (uintptr_t)memory, LARGE, mr->lkey };
	struct ibv_recv_wr request = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;

	connection->failed |= !!ibv_post_recv(connection->id->qp, &request, &bad);
}

static struct connection *equip(struct rdma_cm_id *id)
{
	struct connection *connection = connections;
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.cap = { 2 * DEPTH, 2 * DEPTH, 1, 1, 0 },
		.sq_sig_all = 1,
	};

	if (!pd) {
		int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

		memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			      0);
		check(memory == MAP_FAILED ? -1 : 0, "mmap");
		pd = check_pointer(ibv_alloc_pd(id->verbs), "ibv_alloc_pd");
		mr = check_pointer(ibv_reg_mr(pd, memory, MEMORY, access), "ibv_reg_mr");
	}
	while (connection->id)
		if (++connection == connections + PEERS_MAX)
			die("too many peers");
	*connection = (struct connection){ .id = id };
	id->context = connection;
	connection->cq = check_pointer(ibv_create_cq(id->verbs, 8 * DEPTH, NULL, NULL, 0),
				       "ibv_create_cq");
	attributes.send_cq = attributes.recv_cq = connection->cq;
	check(rdma_create_qp(id, pd, &attributes), "rdma_create_qp");
	for (int i = 0; i < DEPTH; i++)
		post_receive(connection);
	return connection;
}

static void post_operation(struct connection *connection)
{
	static const enum ibv_wr_opcode OPCODES[] = {
		IBV_WR_SEND,	  IBV_WR_RDMA_WRITE,	       IBV_WR_RDMA_READ,
		IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_RDMA_WRITE_WITH_IMM,
	};
	unsigned long turn = connection->posted++;
	enum ibv_wr_opcode opcode = OPCODES[turn % 6];
	bool atomic = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	uint64_t offset = (1 + turn % DEPTH) * LARGE;
	struct ibv_sge sge = { (uintptr_t)memory + offset,
			       atomic ? 8 : turn % 5 ? SMALL : LARGE, mr->lkey };
	struct ibv_send_wr request = { .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;

	if (atomic) {
		request.wr.atomic.remote_addr = connection->peer.address;
		request.wr.atomic.rkey = connection->peer.key;
		request.wr.atomic.compare_add = 1;
	} else {
		request.wr.rdma.remote_addr = connection->peer.address + DEPTH * LARGE + offset;
		request.wr.rdma.rkey = connection->peer.key;
	}
	connection->failed |= !!ibv_post_send(connection->id->qp, &request, &bad);
	connection->outstanding++;
}

static void pump(struct connection *connection)
{
	struct ibv_wc completions[DEPTH];
	int count = ibv_poll_cq(connection->cq, DEPTH, completions);

	for (int i = 0; i < count; i++) {
		connection->failed |= completions[i].status != IBV_WC_SUCCESS;
		if (completions[i].wr_id == 1 && !connection->failed)
			post_receive(connection);
		else
			connection->outstanding--;
	}
	while (connection->established && !connection->failed && connection->outstanding < DEPTH)
		post_operation(connection);
}

static struct rdma_conn_param offering(struct offer *offer)
{
	struct rdma_conn_param parameters = connection_parameters();

	*offer = (struct offer){ htobe64((uintptr_t)memory), htobe32(mr->rkey) };
	parameters.private_data = offer;
	parameters.private_data_len = sizeof *offer;
	return parameters;
}

static void take_offer(struct connection *connection, const struct rdma_conn_param *parameters)
{
	struct offer offer;

	if (parameters->private_data_len < sizeof offer)
		die("%d bytes of private data", parameters->private_data_len);
	memcpy(&offer, parameters->private_data, sizeof offer);
	connection->peer = (struct offer){ be64toh(offer.address), be32toh(offer.key) };
}

static void answer(struct rdma_cm_event *event)
{
	struct connection *connection = equip(event->id);
	struct rdma_conn_param parameters;
	struct offer offer;

	take_offer(connection, &event->param.conn);
	parameters = offering(&offer);
	connection->over = !!rdma_accept(event->id, &parameters);
}

/* Handles all pending events and completions, without waiting. */
static void look(void)
{
	struct pollfd events = { .fd = channel->fd, .events = POLLIN };
	struct rdma_cm_event *event;

	while (poll(&events, 1, 0) == 1) {
		struct connection *connection;

		check(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
		connection = event->id->context;
		switch (event->event) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			answer(event);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			if (event->param.conn.private_data_len)
				take_offer(connection, &event->param.conn);
			connection->established = true;
			break;
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			break;
		default: /* the connection has ended */
			connection->over = true;
		}
		check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
	}
	for (int i = 0; i < PEERS_MAX; i++)
		if (connections[i].id && !connections[i].over)
			pump(&connections[i]);
}

static void dial(const char *port)
{
	struct connection *connection = equip(route_to(channel, "127.0.0.1", port));
	struct rdma_conn_param parameters;
	struct offer offer;

	parameters = offering(&offer);
	check(rdma_connect(connection->id, &parameters), "rdma_connect");
}

/* Closes the connection's objects, and returns the seconds that this took. */
static double leave(struct connection *connection)
{
	double start = now();

	rdma_disconnect(connection->id);
	rdma_destroy_qp(connection->id);
	check(ibv_destroy_cq(connection->cq), "ibv_destroy_cq");
	check(rdma_destroy_id(connection->id), "rdma_destroy_id");
	*connection = (struct connection){ 0 };
	return now() - start;
}

/* ---- The peer ---- */

static void be_peer(const char *role, const char *port)
{
	channel = check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	if (!strcmp(role, "dial")) {
		dial(port);
	} else {
		listen_on(channel, port);
		puts("listening");
		fflush(stdout);
	}
	while (!connections[0].over)
		look();
	/* The survivor may refuse a late request. */
	pause();
}

static pid_t start_peer(const char *role, const char *port)
{
	char *arguments[] = { "peer_death", "peer", (char *)role, (char *)port, NULL };
	posix_spawn_file_actions_t actions;
	char line[16];
	int ends[2];
	pid_t peer;

	check(pipe2(ends, O_CLOEXEC), "pipe2");
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
	check(posix_spawn(&peer, "/proc/self/exe", &actions, NULL, arguments, environ),
	      "posix_spawn");
	posix_spawn_file_actions_destroy(&actions);
	close(ends[1]);
	if (!strcmp(role, "listen") && read(ends[0], line, sizeof line) <= 0)
		die("the peer does not listen");
	close(ends[0]);
	return peer;
}

/* ---- The survivor ---- */

static void reap(pid_t peer)
{
	int status;

	if (kill(peer, SIGKILL) || waitpid(peer, &status, 0) != peer)
		die("the peer is gone");
	if (!WIFSIGNALED(status))
		die("the peer ended by itself, with status %#x", status);
}

/* Waits until all connections have ended. */
static void await_ends(void)
{
	double deadline = now() + TIMEOUT_S;

	for (int i = 0; i < PEERS_MAX; i++) {
		while (connections[i].id && !connections[i].over) {
			look();
			if (now() > deadline)
				die("DEFECT: no event reports the end of the peer (established: %d)",
				    connections[i].established);
		}
	}
}

/* Runs one peer until its end. Returns the seconds that closing the connections took. */
static double survive(bool serves, bool kills, const char *port, int *connected)
{
	pid_t peer = start_peer(serves ? "dial" : "listen", port);
	double end = now() + (random() % LIFE_US_MAX) / 1e6, longest = 0;

	if (!serves)
		dial(port);
	while (now() < end)
		look();
	if (kills) {
		reap(peer);
		look();
		await_ends();
	} else {
		check(kill(peer, SIGSTOP), "kill");
		for (end = now() + 0.05; now() < end;)
			look();
	}
	for (int i = 0; i < PEERS_MAX; i++) {
		double time;

		*connected += connections[i].established;
		time = connections[i].id ? leave(&connections[i]) : 0;
		longest = time > longest ? time : longest;
	}
	if (!kills)
		reap(peer);
	return longest;
}

/* Deregisters the memory, for which Weft revokes the access of each peer. */
static void forget_memory(void)
{
	if (!pd)
		return;
	check(ibv_dereg_mr(mr), "ibv_dereg_mr");
	check(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	munmap(memory, MEMORY);
	pd = NULL;
}

static void survive_all(const char *role, const char *end, const char *port, int rounds,
			unsigned int seed)
{
	bool serves = !strcmp(role, "serve"), kills = !strcmp(end, "kill");
	int connected = 0, early_descriptors = 0, early_mappings = 0;
	double longest = 0;

	srandom(seed);
	channel = check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	if (serves)
		listen_on(channel, port);
	for (int round = 0; round < rounds; round++) {
		double left = survive(serves, kills, port, &connected);

		longest = left > longest ? left : longest;
		if (round % 3 == 2)
			forget_memory();
		if (round == EARLY) {
			forget_memory(); /* whether it is registered is chance */
			usleep(SETTLE_US);
			tell_resources("early");
			early_descriptors = descriptors();
			early_mappings = mappings();
		}
	}
	printf("rounds: %d connected: %d\nleft: %.0f ms\n", rounds, connected, longest * 1e3);
	forget_memory();
	settle(early_descriptors, early_mappings);
	tell_resources("end");
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "peer"))
		be_peer(argv[2], argv[3]);
	else if (argc == 7 && !strcmp(argv[1], "survive"))
		survive_all(argv[2], argv[3], argv[4], atoi(argv[5]), atoi(argv[6]));
	else
		die("usage: see the head of peer_death.c");
	return 0;
}
