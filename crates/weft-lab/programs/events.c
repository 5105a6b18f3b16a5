/*
 * The order of the connection manager's events, with many endpoints on one channel.
 *
 *   events serve SPACE PORT COUNT                 accepts COUNT connections, until all have ended
 *   events connect SPACE HOST PORT CLIENTS COUNT  CLIENTS threads open COUNT connections each
 *
 * SPACE is "tcp" or "udp". Each client has one channel for all of its endpoints, and opens the next
 * one after the event that the last is established. Each request contains the number of its
 * client's established connections: the server must have had the events of all of them by then.
 * Each event must be a valid next event of its identifier. Connections end in four ways: the client
 * disconnects at once, the server disconnects at once, the client disconnects after a message, or
 * the client's process ends.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <unistd.h>

#include "lab.h"

enum { CLIENTS_MAX = 64, CQ_DEPTH = 4096 };

/* How a connection ends. */
enum end { BY_CLIENT, BY_SERVER, BEHIND_MESSAGE, WITH_PROCESS, ENDS };

/* The private data of a client's request. */
struct request {
	uint32_t client;
	uint32_t established; /* number of this client's established connections */
	uint32_t end;
};

/* The last event of an identifier that has had none. */
#define NOTHING ((enum rdma_cm_event_type)-1)

/* The state of an identifier: its last event. */
struct endpoint {
	enum rdma_cm_event_type last;
	struct request request;
};

static enum rdma_port_space space;
static const char *host, *port;
static int per_client;
static bool serves;

static struct rdma_event_channel *new_channel(void)
{
	return check_pointer(rdma_create_event_channel(), "rdma_create_event_channel");
}

static void equip(struct rdma_cm_id *id)
{
	/* All share a protection domain and a completion queue: the test is about events. */
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static struct ibv_pd *pd;
	static struct ibv_cq *cq;
	static char buffer[256];
	static struct ibv_mr *mr;
	struct ibv_qp_init_attr attributes = {
		.qp_type = space == RDMA_PS_TCP ? IBV_QPT_RC : IBV_QPT_UD,
		.cap = { 4, 4, 1, 1, 0 },
	};
	struct ibv_sge sge;
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_wc completions[16];

	pthread_mutex_lock(&mutex);
	if (!pd) {
		pd = check_pointer(ibv_alloc_pd(id->verbs), "ibv_alloc_pd");
		cq = check_pointer(ibv_create_cq(id->verbs, CQ_DEPTH, NULL, NULL, 0),
				   "ibv_create_cq");
		mr = check_pointer(ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE),
				   "ibv_reg_mr");
	}
	pthread_mutex_unlock(&mutex);
	while (ibv_poll_cq(cq, 16, completions) > 0)
		;
	attributes.send_cq = attributes.recv_cq = cq;
	check(rdma_create_qp(id, pd, &attributes), "rdma_create_qp");
	sge = (struct ibv_sge){ (uintptr_t)buffer, sizeof buffer, mr->lkey };
	check(ibv_post_recv(id->qp, &receive, &bad), "ibv_post_recv");
}

static void send_nothing(struct rdma_cm_id *id)
{
	struct ibv_send_wr message = { .opcode = IBV_WR_SEND }, *bad;

	check(ibv_post_send(id->qp, &message, &bad), "ibv_post_send");
}

/* Returns whether `next` may follow `last` for an identifier of this side. */
static bool may_follow(enum rdma_cm_event_type last, enum rdma_cm_event_type next)
{
	switch (next) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		return last == NOTHING;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		return last == RDMA_CM_EVENT_ADDR_RESOLVED;
	case RDMA_CM_EVENT_ESTABLISHED:
		return last == (serves ? RDMA_CM_EVENT_CONNECT_REQUEST
				       : RDMA_CM_EVENT_ROUTE_RESOLVED);
	case RDMA_CM_EVENT_DISCONNECTED:
		return last == RDMA_CM_EVENT_ESTABLISHED;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		return last == RDMA_CM_EVENT_DISCONNECTED;
	default:
		return false;
	}
}

/* Takes the next event. A new identifier gets an endpoint; for others the event must be valid. */
static struct rdma_cm_id *next_event(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct endpoint *endpoint;

	check(rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	id = event->id;
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		const size_t wanted = sizeof endpoint->request;
		bool datagram = space == RDMA_PS_UDP;
		const void *data = datagram ? event->param.ud.private_data
					    : event->param.conn.private_data;
		size_t length = datagram ? event->param.ud.private_data_len
					 : event->param.conn.private_data_len;

		id->context = endpoint = check_pointer(calloc(1, sizeof *endpoint), "calloc");
		if (length < wanted)
			die("a request of %zu bytes", length);
		memcpy(&endpoint->request, data, wanted);
		if (endpoint->request.client >= CLIENTS_MAX)
			die("client %u", endpoint->request.client);
	} else {
		endpoint = id->context;
		if (event->status || !may_follow(endpoint->last, event->event))
			die("%s (status %d) after %s", rdma_event_str(event->event), event->status,
			    endpoint->last == NOTHING ? "nothing" : rdma_event_str(endpoint->last));
	}
	endpoint->last = event->event;
	check(rdma_ack_cm_event(event), "rdma_ack_cm_event");
	return id;
}

static void destroy(struct rdma_cm_id *id)
{
	free(id->context);
	rdma_destroy_qp(id);
	/* Without a queue pair it does nothing. */
	rdma_destroy_qp(id);
	check(rdma_destroy_id(id), "rdma_destroy_id");
}

static void accept_request(struct rdma_cm_id *id, const uint32_t *established)
{
	struct rdma_conn_param parameters = connection_parameters();
	const struct request *request = &((struct endpoint *)id->context)->request;

	if (space == RDMA_PS_TCP && established[request->client] != request->established)
		die("DEFECT: a request of client %u, of whose %u connections %u are established "
		    "here", request->client, request->established, established[request->client]);
	equip(id);
	if (space == RDMA_PS_UDP)
		parameters.qp_num = id->qp->qp_num;
	check(rdma_accept(id, &parameters), "rdma_accept");
}

static void serve(int count)
{
	static uint32_t established[CLIENTS_MAX];
	struct rdma_event_channel *channel = new_channel();
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	struct rdma_cm_id *listener;
	int requested = 0, over = 0;

	check(rdma_create_id(channel, &listener, NULL, space), "rdma_create_id");
	check(rdma_bind_addr(listener, (struct sockaddr *)&address), "rdma_bind_addr");
	check(rdma_listen(listener, 128), "rdma_listen");
	while (over < count) {
		struct rdma_cm_id *id = next_event(channel);
		struct endpoint *endpoint = id->context;

		switch (endpoint->last) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			accept_request(id, established);
			requested++;
			/* Over UDP no further event follows. */
			over += space == RDMA_PS_UDP;
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			established[endpoint->request.client]++;
			if (endpoint->request.end == BY_SERVER)
				check(rdma_disconnect(id), "rdma_disconnect");
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			if (endpoint->request.end != BY_SERVER)
				check(rdma_disconnect(id), "rdma_disconnect");
			break;
		default:
			destroy(id);
			over++;
		}
	}
	printf("requests: %d\n", requested);
	check(rdma_destroy_id(listener), "rdma_destroy_id");
}

/* Takes events until `id` has had the wanted one. */
static void await(struct rdma_event_channel *channel, struct rdma_cm_id *id,
		  enum rdma_cm_event_type wanted)
{
	struct endpoint *endpoint = id->context;

	while (endpoint->last != wanted)
		next_event(channel);
}

static struct rdma_cm_id *open_one(struct rdma_event_channel *channel, struct request request)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
	struct rdma_conn_param parameters = connection_parameters();
	struct endpoint *endpoint = check_pointer(calloc(1, sizeof *endpoint), "calloc");
	struct rdma_cm_id *id;

	inet_pton(AF_INET, host, &address.sin_addr);
	endpoint->last = NOTHING;
	check(rdma_create_id(channel, &id, endpoint, space), "rdma_create_id");
	check(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 5000), "rdma_resolve_addr");
	await(channel, id, RDMA_CM_EVENT_ADDR_RESOLVED);
	check(rdma_resolve_route(id, 5000), "rdma_resolve_route");
	await(channel, id, RDMA_CM_EVENT_ROUTE_RESOLVED);
	equip(id);
	parameters.private_data = &request;
	parameters.private_data_len = sizeof request;
	check(rdma_connect(id, &parameters), "rdma_connect");
	await(channel, id, RDMA_CM_EVENT_ESTABLISHED);
	return id;
}

static void *be_client(void *argument)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id **ids = check_pointer(calloc(per_client, sizeof *ids), "calloc");
	struct request request = { .client = (uintptr_t)argument };

	for (int i = 0; i < per_client; i++) {
		request.end = (request.client + i) % ENDS;
		ids[i] = open_one(channel, request);
		request.established++;
		if (space == RDMA_PS_UDP)
			continue;
		if (request.end == BEHIND_MESSAGE)
			send_nothing(ids[i]);
		if (request.end == BY_CLIENT || request.end == BEHIND_MESSAGE)
			check(rdma_disconnect(ids[i]), "rdma_disconnect");
	}
	for (int i = 0; i < per_client; i++) {
		if (space == RDMA_PS_UDP || (request.client + i) % ENDS == WITH_PROCESS)
			continue;
		await(channel, ids[i], RDMA_CM_EVENT_TIMEWAIT_EXIT);
		destroy(ids[i]);
	}
	return NULL;
}

static void connect_all(int clients)
{
	pthread_t threads[CLIENTS_MAX];

	if (clients > CLIENTS_MAX)
		die("%d clients are too many", clients);
	for (int i = 0; i < clients; i++)
		check(pthread_create(&threads[i], NULL, be_client, (void *)(uintptr_t)i), "thread");
	for (int i = 0; i < clients; i++)
		pthread_join(threads[i], NULL);
	puts("all in order");
	fflush(stdout);
	_exit(0); /* the remaining connections end with the process */
}

int main(int argc, char **argv)
{
	if (argc < 5)
		die("usage: see the source");
	space = strcmp(argv[2], "udp") ? RDMA_PS_TCP : RDMA_PS_UDP;
	if (argc == 5 && !strcmp(argv[1], "serve")) {
		serves = true;
		port = argv[3];
		serve(atoi(argv[4]));
	} else if (argc == 7 && !strcmp(argv[1], "connect")) {
		host = argv[3];
		port = argv[4];
		per_client = atoi(argv[6]);
		connect_all(atoi(argv[5]));
	} else {
		die("usage: see the source");
	}
	return 0;
}
