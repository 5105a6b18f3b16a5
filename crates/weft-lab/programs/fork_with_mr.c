/*
 * A program that forks while it uses the device.
 *
 *   fork_with_mr HOST PORT     the peer is `flow serve PORT 2`
 *
 * The parent sends over one connection before, while and after it has a child. One child exits, one
 * executes another program, and one uses the device itself with another connection. If a child
 * writes to registered memory, the parent must not see it. The program prints "parent: N sends" and
 * "child: N sends" and ends with status 0.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "lab.h"

enum { MESSAGE_BYTES = 512, SENDS = 500 };

/* Peers may access the memory, so Weft can remap it as shared. */
static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

struct connection {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char *message;
	int sends;
};

static struct connection connect_to(const char *host, const char *port)
{
	struct rdma_conn_param parameters = connection_parameters();
	struct ibv_qp_init_attr attributes = {
		.qp_type = IBV_QPT_RC,
		.cap = { 1, 1, 1, 1, 0 },
		.sq_sig_all = 1,
	};
	struct connection made = { 0 };

	made.channel = check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
	made.id = route_to(made.channel, host, port);
	made.pd = check_pointer(ibv_alloc_pd(made.id->verbs), "ibv_alloc_pd");
	made.cq = check_pointer(ibv_create_cq(made.id->verbs, 4, NULL, NULL, 0), "ibv_create_cq");
	made.message = check_pointer(aligned_alloc(4096, 4096), "aligned_alloc");
	made.mr = check_pointer(ibv_reg_mr(made.pd, made.message, 4096, ACCESS), "ibv_reg_mr");
	attributes.send_cq = attributes.recv_cq = made.cq;
	check(rdma_create_qp(made.id, made.pd, &attributes), "rdma_create_qp");
	check(rdma_connect(made.id, &parameters), "rdma_connect");
	expect_event(made.channel, RDMA_CM_EVENT_ESTABLISHED);
	return made;
}

static void send_some(struct connection *connection)
{
	struct ibv_sge sge = { (uintptr_t)connection->message, MESSAGE_BYTES,
			       connection->mr->lkey };
	struct ibv_send_wr request = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_wc completion;
	int count;

	for (int i = 0; i < SENDS; i++) {
		memset(connection->message, i, MESSAGE_BYTES);
		check(ibv_post_send(connection->id->qp, &request, &bad), "ibv_post_send");
		while (!(count = ibv_poll_cq(connection->cq, 1, &completion)))
			;
		if (count < 0 || completion.status != IBV_WC_SUCCESS)
			die("send %d: %s", i, ibv_wc_status_str(completion.status));
	}
	connection->sends += SENDS;
}

static void close_connection(struct connection *connection)
{
	check(rdma_disconnect(connection->id), "rdma_disconnect");
	expect_event(connection->channel, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(connection->id);
	check(ibv_dereg_mr(connection->mr), "ibv_dereg_mr");
	check(ibv_destroy_cq(connection->cq), "ibv_destroy_cq");
	check(ibv_dealloc_pd(connection->pd), "ibv_dealloc_pd");
	check(rdma_destroy_id(connection->id), "rdma_destroy_id");
	rdma_destroy_event_channel(connection->channel);
}

static pid_t checked_fork(void)
{
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child < 0)
		check(-1, "fork");
	return child;
}

static void reap(pid_t child)
{
	int status;

	if (waitpid(child, &status, 0) != child || status)
		die("the child ended with status %#x", status);
}

int main(int argc, char **argv)
{
	struct connection connection;
	pid_t child;

	if (argc != 3)
		die("usage: forking HOST PORT");
	check(ibv_fork_init(), "ibv_fork_init");
	connection = connect_to(argv[1], argv[2]);
	send_some(&connection);

	strcpy(connection.message + MESSAGE_BYTES, "the parent's");
	child = checked_fork();
	if (!child) {
		if (strcmp(connection.message + MESSAGE_BYTES, "the parent's"))
			die("DEFECT: the child has not inherited the memory");
		memset(connection.message, 0xee, 4096);
		usleep(200000);
		exit(0); /* runs the library's destructors */
	}
	send_some(&connection);
	reap(child);
	if (strcmp(connection.message + MESSAGE_BYTES, "the parent's"))
		die("DEFECT: the child has changed its parent's memory");
	send_some(&connection);

	child = checked_fork();
	if (!child) {
		execlp("true", "true", NULL);
		_exit(1);
	}
	send_some(&connection);
	reap(child);
	send_some(&connection);
	close_connection(&connection);
	printf("parent: %d sends\n", connection.sends);

	child = checked_fork();
	if (!child) {
		connection = connect_to(argv[1], argv[2]);
		send_some(&connection);
		close_connection(&connection);
		printf("child: %d sends\n", connection.sends);
		exit(0);
	}
	reap(child);
	return 0;
}
