/*
 * A peer that executes another program while its partner writes to its memory.
 *
 *   exec_with_mr serve PORT READY DONE
 *       registers memory, and after the partner has written to it, executes
 *   exec_with_mr after READY DONE
 *       maps memory at the same address, makes the file READY, waits for the file DONE, and checks
 *       its memory
 *   exec_with_mr connect HOST PORT READY DONE
 *       writes to the peer's memory, before and after
 *
 * The second program inherits the first one's descriptors, so the partner does not notice it.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "lab.h"

enum { BYTES = 65536, WARM = 200, WRITES = 32, FDS = 1024, MARK = 0x5a };

/* The address of the memory, at which nothing else is mapped. */
static char *const memory = (char *)0x200000000000;

struct place {
	uint64_t address;
	uint32_t key;
};

static void pause_for(long milliseconds)
{
	struct timespec time = { 0, milliseconds * 1000000 };

	nanosleep(&time, NULL);
}

static void map_memory(void)
{
	void *mapped = mmap(memory, BYTES, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (mapped != memory)
		die("mmap: %s", strerror(errno));
}

static void make_file(const char *path)
{
	check(close(open(path, O_CREAT | O_WRONLY, 0600)), path);
}

static void await_file(const char *path)
{
	while (access(path, F_OK))
		pause_for(1);
}

static struct ibv_mr *equip(struct rdma_cm_id *id, void *start, struct ibv_cq **cq)
{
	struct ibv_pd *pd = check_pointer(ibv_alloc_pd(id->verbs), "ibv_alloc_pd");
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.cap = { 2 * WRITES, 1, 1, 1, 0 },
	};
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

	*cq = check_pointer(ibv_create_cq(id->verbs, 2 * WRITES, NULL, NULL, 0), "ibv_create_cq");
	attributes.send_cq = attributes.recv_cq = *cq;
	check(rdma_create_qp(id, pd, &attributes), "rdma_create_qp");
	return check_pointer(ibv_reg_mr(pd, start, BYTES, rights), "ibv_reg_mr");
}

static void serve(const char *port, char **files)
{
	struct rdma_event_channel *channel =
		check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	struct rdma_conn_param parameters = connection_parameters();
	char *after[] = { "exec_with_mr", "after", files[0], files[1], NULL };
	struct rdma_cm_id *id;
	struct place place;
	struct ibv_mr *mr;
	struct ibv_cq *cq;

	map_memory();
	listen_on(channel, port);
	id = expect_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	mr = equip(id, memory, &cq);
	place = (struct place){ (uintptr_t)memory, mr->rkey };
	parameters.private_data = &place;
	parameters.private_data_len = sizeof place;
	check(rdma_accept(id, &parameters), "rdma_accept");
	while (*(volatile int *)memory != WARM)
		pause_for(1);
	for (int fd = 3; fd < FDS; fd++)
		fcntl(fd, F_SETFD, 0);
	execv("/proc/self/exe", after);
	die("execv: %s", strerror(errno));
}

static void after(char **files)
{
	map_memory();
	memset(memory, MARK, BYTES);
	make_file(files[0]);
	await_file(files[1]);
	for (int i = 0; i < BYTES; i++) {
		if (memory[i] != MARK)
			die("DEFECT: byte %d is %#x", i, memory[i]);
	}
	puts("untouched");
}

static void post(struct rdma_cm_id *id, struct ibv_mr *mr, const struct place *place, int length)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, length, mr->lkey };
	struct ibv_send_wr write = {
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.sg_list = &sge,
		.num_sge = 1,
		.wr.rdma = { place->address, place->key },
	}, *bad;

	check(ibv_post_send(id->qp, &write, &bad), "ibv_post_send");
}

static void connect_to(const char *host, const char *port, char **files)
{
	struct rdma_event_channel *channel =
		check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	struct rdma_conn_param parameters = connection_parameters();
	struct rdma_cm_id *id = route_to(channel, host, port);
	static char buffer[BYTES];
	struct rdma_cm_event *event;
	struct ibv_wc completion;
	struct place place;
	struct ibv_mr *mr;
	struct ibv_cq *cq;

	mr = equip(id, buffer, &cq);
	check(rdma_connect(id, &parameters), "rdma_connect");
	check(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	if (event->event != RDMA_CM_EVENT_ESTABLISHED)
		die("%s", rdma_event_str(event->event));
	memcpy(&place, event->param.conn.private_data, sizeof place);
	check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
	/* After these writes Weft writes directly to the peer's memory. */
	for (int i = 1; i <= WARM; i++) {
		*(int *)buffer = i;
		post(id, mr, &place, BYTES);
		while (!ibv_poll_cq(cq, 1, &completion))
			;
		if (completion.status)
			die("%s", ibv_wc_status_str(completion.status));
	}
	await_file(files[0]);
	for (int i = 0; i < WRITES; i++)
		post(id, mr, &place, BYTES);
	for (int i = 0; i < 300; i++) {
		ibv_poll_cq(cq, 1, &completion);
		pause_for(1);
	}
	make_file(files[1]);
	puts("wrote");
	fflush(stdout);
	_exit(0);
}

int main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "serve"))
		serve(argv[2], argv + 3);
	else if (argc == 4 && !strcmp(argv[1], "after"))
		after(argv + 2);
	else if (argc == 6 && !strcmp(argv[1], "connect"))
		connect_to(argv[2], argv[3], argv + 4);
	else
		die("usage: see the source");
	return 0;
}
