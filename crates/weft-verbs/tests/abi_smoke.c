/* Makes every kind of object through the C interface, passes bad arguments, and moves data between
 * two queue pairs of this process. Built against the system's headers, run on our library by
 * `cargo xtask exports`. Prints nothing unless something is wrong.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Exported, but declared in no header. */
int ibv_read_sysfs_file(const char *directory, const char *file, char *buffer, size_t size);

#define CHECK(cond)                                                                    \
	do {                                                                           \
		if (!(cond)) {                                                         \
			fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__,        \
				__LINE__, #cond, errno, strerror(errno));              \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

/* NULL, with the errno that the manual names. */
#define FAILS(call, code)                                                              \
	do {                                                                           \
		errno = 0;                                                             \
		CHECK((call) == NULL && errno == (code));                              \
	} while (0)

#define ALL_ACCESS                                                                     \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |   \
	 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)

static struct ibv_context *ctx;
static struct ibv_pd *pd;

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec * 1e-9;
}

/* --- Attributes ------------------------------------------------------------------------------ */

static void open_first_device(void)
{
	struct ibv_device **list;
	char text[64];
	int count = 0;

	CHECK(ibv_fork_init() == 0 && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
	list = ibv_get_device_list(&count);
	CHECK(list && count > 0 && list[count] == NULL);
	CHECK(strncmp(ibv_get_device_name(list[0]), "weft_", 5) == 0);
	CHECK(ibv_get_device_guid(list[0]) != 0 && ibv_get_device_index(list[0]) > 0);
	CHECK(ibv_read_sysfs_file(list[0]->ibdev_path, "board_id", text, sizeof(text)) == 4);
	CHECK(strcmp(text, "Weft") == 0);
	CHECK(ibv_read_sysfs_file(list[0]->ibdev_path, "nothing", text, sizeof(text)) == -1);
	ctx = ibv_open_device(list[0]);
	CHECK(ctx && ctx->device == list[0] && fcntl(ctx->async_fd, F_GETFD) >= 0);
	ibv_free_device_list(list);
	CHECK(strcmp(ibv_get_device_name(ctx->device), ctx->device->name) == 0);
}

static void attributes(void)
{
	/* A program of a newer rdma-core passes a longer structure: it is cleared to its end. */
	struct {
		struct ibv_port_attr attr;
		char more[16];
	} longer;
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };
	struct ibv_device_attr_ex ex;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	struct ibv_gid_entry entries[64], entry;
	union ibv_gid gid;
	ssize_t count;
	__be16 pkey;

	CHECK(ibv_query_device(ctx, &attr) == 0 && attr.phys_port_cnt == 1);
	CHECK(attr.max_sge >= 4 && attr.max_qp_wr >= 1024 && attr.fw_ver[0]);
	CHECK(ibv_query_device_ex(ctx, NULL, &ex) == 0);
	CHECK(ex.orig_attr.max_qp == attr.max_qp && ex.phys_port_cnt_ex == 1);
	CHECK(ibv_query_device_ex(ctx, &input, &ex) == EINVAL);

	CHECK(ibv_query_port(ctx, 0, &port) == EINVAL);
	CHECK(ibv_query_port(ctx, 2, &port) == EINVAL);
	CHECK(ibv_query_port(ctx, 1, &port) == 0);
	CHECK(port.state == IBV_PORT_ACTIVE && port.lid != 0 && port.gid_tbl_len > 0);
	CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET && port.active_mtu == IBV_MTU_4096);
	memset(&longer, 0xff, sizeof(longer));
	CHECK(verbs_get_ctx(ctx)->query_port(ctx, 1, &longer.attr, sizeof(longer)) == 0);
	CHECK(longer.attr.lid == port.lid && longer.more[0] == 0 && longer.more[15] == 0);
	memset(&longer, 0xff, sizeof(longer));
	CHECK((ibv_query_port)(ctx, 1, (struct _compat_ibv_port_attr *)&longer) == 0);
	CHECK(longer.attr.lid == port.lid && longer.attr.port_cap_flags2 == 0xffff);

	CHECK(ibv_query_gid(ctx, 1, 0, &gid) == 0);
	CHECK(ibv_query_gid(ctx, 2, 0, &gid) == -1 && ibv_query_gid(ctx, 1, -1, &gid) == -1);
	CHECK(ibv_query_gid_ex(ctx, 1, 0, &entry, 0) == 0);
	CHECK(memcmp(&entry.gid, &gid, sizeof(gid)) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
	CHECK(ibv_query_gid_ex(ctx, 1, port.gid_tbl_len, &entry, 0) == ENODATA);
	count = ibv_query_gid_table(ctx, entries, 64, 0);
	CHECK(count == port.gid_tbl_len && memcmp(entries, &entry, 16) == 0);
	CHECK(ibv_query_gid_table(ctx, entries, 0, 0) == -EINVAL);
	CHECK(ibv_query_pkey(ctx, 1, 0, &pkey) == 0 && pkey == 0xffff);
	CHECK(ibv_query_pkey(ctx, 1, 1, &pkey) == -1);
	CHECK(ibv_get_pkey_index(ctx, 1, pkey) == 0 && ibv_get_pkey_index(ctx, 1, 0) == -1);
}

/* The texts and rates are those of the system's own library, where there is one. */
static void like_the_system(void)
{
	void *system = dlopen("/usr/lib/x86_64-linux-gnu/libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	static const char *const texts[] = { "ibv_wc_status_str", "ibv_node_type_str",
					     "ibv_port_state_str", "ibv_event_type_str" };
	static const char *const rates[] = { "ibv_rate_to_mult", "mult_to_ibv_rate",
					     "ibv_rate_to_mbps", "mbps_to_ibv_rate" };

	if (!system)
		return;
	for (int i = 0; i < 4; i++) {
		const char *(*theirs)(int) = dlsym(system, texts[i]);
		const char *(*ours)(int) = dlsym(RTLD_DEFAULT, texts[i]);

		CHECK(theirs && ours && theirs != ours);
		for (int value = -2; value < 40; value++)
			CHECK(strcmp(ours(value), theirs(value)) == 0);
	}
	for (int i = 0; i < 4; i++) {
		int (*theirs)(int) = dlsym(system, rates[i]);
		int (*ours)(int) = dlsym(RTLD_DEFAULT, rates[i]);

		CHECK(theirs && ours && theirs != ours);
		for (int value = -2; value < 1300000; value++)
			CHECK(ours(value) == theirs(value));
	}
	dlclose(system);
}

static void versions(void)
{
	static const struct {
		const char *name, *version;
	} some[] = {
		{ "ibv_open_device", "IBVERBS_1.1" },
		{ "ibv_create_comp_channel", "IBVERBS_1.0" },
		{ "_ibv_query_gid_ex", "IBVERBS_1.11" },
		{ "ibv_cmd_alloc_dm", "IBVERBS_PRIVATE_34" },
		{ "verbs_allow_disassociate_destroy", "IBVERBS_PRIVATE_34" },
	};

	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++)
		CHECK(dlvsym(RTLD_DEFAULT, some[i].name, some[i].version));
	CHECK(!dlvsym(RTLD_DEFAULT, "ibv_open_device", "IBVERBS_1.14"));
}

/* --- Objects, and what they refuse ------------------------------------------------------------ */

static void domains(void)
{
	struct ibv_parent_domain_init_attr init = { 0 };
	struct ibv_td_init_attr td_init = { 0 };
	struct ibv_pd *parent, *other = ibv_alloc_pd(ctx);
	struct ibv_td *td = ibv_alloc_td(ctx, &td_init);
	char memory[64];
	struct ibv_mr *mr;

	CHECK(other && td);
	FAILS(ibv_alloc_parent_domain(ctx, &init), EINVAL);
	init.pd = other;
	init.td = td;
	parent = ibv_alloc_parent_domain(ctx, &init);
	CHECK(parent && parent->context == ctx);
	mr = ibv_reg_mr(parent, memory, sizeof(memory), 0);
	CHECK(mr && mr->pd == parent);
	CHECK(ibv_dealloc_pd(parent) == EBUSY);
	CHECK(ibv_dealloc_pd(other) == EBUSY && ibv_dealloc_td(td) == EBUSY);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(parent) == 0);
	CHECK(ibv_dealloc_td(td) == 0 && ibv_dealloc_pd(other) == 0);
	td_init.comp_mask = 1;
	FAILS(ibv_alloc_td(ctx, &td_init), EOPNOTSUPP);
}

static void regions(void)
{
	struct ibv_sge sge = { 0 };
	struct ibv_mw *mw;
	char memory[64];
	struct ibv_mr *mr;
	uint32_t key;

	FAILS(ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_REMOTE_WRITE), EINVAL);
	FAILS(ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	FAILS(ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
	FAILS(ibv_reg_mr(pd, memory, sizeof(memory), 1 << 19), EINVAL);
	FAILS(ibv_reg_mr(pd, memory, 0, 0), EINVAL);
	FAILS(ibv_reg_mr(pd, memory, SIZE_MAX, 0), EINVAL);
	FAILS(ibv_reg_mr(pd, NULL, 64, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	FAILS(ibv_reg_dmabuf_mr(pd, 0, 64, 0, 0, 0), EOPNOTSUPP);
	mr = ibv_reg_mr(pd, memory, sizeof(memory), ALL_ACCESS | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(mr && mr->addr == memory && mr->length == sizeof(memory) && mr->lkey);
	key = mr->lkey;
	CHECK(ibv_rereg_mr(mr, 1 << 5, pd, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, pd, NULL, 0, 0) ==
	      IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, pd, NULL, 0,
			   IBV_ACCESS_REMOTE_WRITE) == IBV_REREG_MR_ERR_CMD);
	CHECK(mr->lkey == key);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, pd, memory + 8, 8, 0) == 0);
	CHECK(mr->addr == memory + 8 && mr->length == 8);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) == 0);
	CHECK(mr->lkey == key && mr->rkey == key); /* a peer that knows it can go on */
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == 0);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0) == EINVAL);
	CHECK(ibv_advise_mr(pd, 99, 0, &sge, 1) == EOPNOTSUPP);
	CHECK(ibv_dereg_mr(mr) == 0);

	FAILS(ibv_alloc_mw(pd, 3), EINVAL);
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(mw && mw->pd == pd && mw->type == IBV_MW_TYPE_2 && mw->rkey);
	CHECK(ibv_dealloc_mw(mw) == 0);
}

static void completion_queues(void)
{
	struct ibv_cq_init_attr_ex init = { .cqe = 16, .wc_flags = IBV_WC_EX_WITH_FLOW_TAG };
	struct ibv_poll_cq_attr poll_attr = { 0 };
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq_ex *ex;
	struct ibv_wc wc[2];
	struct ibv_cq *cq;
	void *user;

	CHECK(channel && channel->context == ctx);
	FAILS(ibv_create_cq(ctx, 0, NULL, NULL, 0), EINVAL);
	FAILS(ibv_create_cq(ctx, -1, NULL, NULL, 0), EINVAL);
	FAILS(ibv_create_cq(ctx, 1 << 30, NULL, NULL, 0), EINVAL);
	FAILS(ibv_create_cq(ctx, 16, NULL, NULL, ctx->num_comp_vectors), EINVAL);
	cq = ibv_create_cq(ctx, 16, &user, channel, 0);
	CHECK(cq && cq->cqe >= 16 && cq->channel == channel && cq->cq_context == &user);
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(ibv_poll_cq(cq, 2, wc) == 0 && ibv_req_notify_cq(cq, 1) == 0);
	CHECK(ibv_resize_cq(cq, 100) == 0 && cq->cqe >= 100);
	CHECK(ibv_resize_cq(cq, 0) == EINVAL && cq->cqe >= 100);
	CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(ibv_get_cq_event(channel, &cq, &user) == -1 && errno == EAGAIN);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);

	FAILS(ibv_create_cq_ex(ctx, &init), EOPNOTSUPP);
	init.wc_flags = IBV_WC_STANDARD_FLAGS;
	init.comp_mask = 1 << 7;
	FAILS(ibv_create_cq_ex(ctx, &init), EOPNOTSUPP);
	init.comp_mask = 0;
	ex = ibv_create_cq_ex(ctx, &init);
	CHECK(ex && ibv_start_poll(ex, &poll_attr) == ENOENT);
	poll_attr.comp_mask = 1;
	CHECK(ibv_start_poll(ex, &poll_attr) == EINVAL);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)) == 0);
}

static void address_handles(void)
{
	struct ibv_ah_attr attr = { .port_num = 1, .dlid = 7 };
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);

	CHECK(ah && ah->pd == pd && ibv_destroy_ah(ah) == 0);
	attr.port_num = 2;
	FAILS(ibv_create_ah(pd, &attr), EINVAL);
	attr.port_num = 1;
	attr.dlid = 0;
	FAILS(ibv_create_ah(pd, &attr), EINVAL);
	attr.is_global = 1;
	CHECK(ibv_query_gid(ctx, 1, 0, &attr.grh.dgid) == 0);
	ah = ibv_create_ah(pd, &attr);
	CHECK(ah && ibv_destroy_ah(ah) == 0);
	attr.grh.sgid_index = 200;
	FAILS(ibv_create_ah(pd, &attr), EINVAL);
}

/* Brings a fresh queue pair for datagrams to RTS. */
static void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
}

static void post_datagram_receive(struct ibv_qp *qp, struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, 128, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

/* Waits for a datagram; what comes with it leads back to the sender. */
static void receive_one(struct ibv_qp *qp, struct ibv_mr *mr, const char *text)
{
	struct ibv_ah_attr attr;
	struct ibv_ah *ah;
	struct ibv_wc wc;
	time_t start = time(NULL);
	int found;

	while ((found = ibv_poll_cq(qp->recv_cq, 1, &wc)) == 0)
		CHECK(time(NULL) < start + 10);
	CHECK(found == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 5);
	CHECK(wc.byte_len == 40 + strlen(text) && wc.src_qp == qp->qp_num);
	CHECK(wc.wc_flags & IBV_WC_GRH);
	CHECK(memcmp((char *)mr->addr + 40, text, strlen(text)) == 0);
	CHECK(ibv_init_ah_from_wc(ctx, 1, &wc, mr->addr, &attr) == 0);
	CHECK(attr.is_global && attr.port_num == 1 && attr.grh.sgid_index == 0);
	ah = ibv_create_ah_from_wc(pd, &wc, mr->addr, 1);
	CHECK(ah && ibv_destroy_ah(ah) == 0);
}

static void datagrams(void)
{
	static char buffer[128];
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex ex = {
		.send_cq = cq,
		.recv_cq = ibv_create_cq(ctx, 16, NULL, NULL, 0),
		.cap = { 8, 8, 2, 2, 64 },
		.qp_type = IBV_QPT_UD,
		.pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct ibv_ah_attr attr = { .port_num = 1, .is_global = 1 };
	union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 239, 255, 1, 2 } };
	struct ibv_sge sge = { (uintptr_t) "plain", 5, 0 };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE
	}, *bad = NULL;
	struct ibv_qp_ex *qpx;
	struct ibv_qp *qp;
	struct ibv_ah *ah;

	FAILS(ibv_create_qp_ex(ctx, &ex), EOPNOTSUPP);
	ex.send_ops_flags = IBV_QP_EX_WITH_SEND;
	qp = ibv_create_qp_ex(ctx, &ex);
	CHECK(mr && qp && qp->qp_type == IBV_QPT_UD);
	to_rts(qp);
	CHECK(ibv_query_gid(ctx, 1, 0, &attr.grh.dgid) == 0);
	ah = ibv_create_ah(pd, &attr);
	CHECK(ah);

	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qp->qp_num;
	wr.wr.ud.remote_qkey = 7;
	wr.opcode = IBV_WR_RDMA_WRITE;
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL);
	wr.opcode = IBV_WR_SEND;
	post_datagram_receive(qp, mr);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	receive_one(qp, mr, "plain");

	qpx = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(qpx);
	qpx->wr_id = 1;
	qpx->wr_flags = 0;
	ibv_wr_send(qpx);
	ibv_wr_set_inline_data(qpx, "built", 5);
	CHECK(ibv_wr_complete(qpx) == EINVAL);
	post_datagram_receive(qp, mr);
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	ibv_wr_set_ud_addr(qpx, ah, qp->qp_num, 7);
	ibv_wr_set_inline_data(qpx, "built", 5);
	CHECK(ibv_wr_complete(qpx) == 0);
	receive_one(qp, mr, "built");

	CHECK(ibv_attach_mcast(qp, &attr.grh.dgid, 0) == EINVAL); /* no group's */
	CHECK(ibv_detach_mcast(qp, &group, 0) == EINVAL);
	CHECK(ibv_attach_mcast(qp, &group, 0) == 0 && ibv_attach_mcast(qp, &group, 0) == 0);
	CHECK(ibv_detach_mcast(qp, &group, 0) == 0 && ibv_detach_mcast(qp, &group, 0) == EINVAL);

	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_ah(ah) == 0 && ibv_dereg_mr(mr) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_cq(ex.recv_cq) == 0);
}

static void queue_pairs(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { 8, 8, 2, 2, 64 },
		.qp_type = IBV_QPT_RAW_PACKET,
	};
	struct ibv_qp_init_attr_ex ex = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { 8, 8, 2, 2, 64 },
		.qp_type = IBV_QPT_RC,
		.pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_TSO,
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad = NULL;
	struct ibv_recv_wr recv = { 0 }, *bad_recv = NULL;
	struct ibv_ece ece = { 0 };
	union ibv_gid gid = { 0 };
	struct ibv_qp *qp;

	CHECK(cq);
	FAILS(ibv_create_qp(pd, &init), EOPNOTSUPP);
	init.qp_type = IBV_QPT_RC;
	init.send_cq = NULL;
	FAILS(ibv_create_qp(pd, &init), EINVAL);
	init.send_cq = cq;
	init.cap.max_inline_data = 1 << 20;
	FAILS(ibv_create_qp(pd, &init), EINVAL);
	init.cap.max_inline_data = 64;
	init.cap.max_send_sge = 1000;
	FAILS(ibv_create_qp(pd, &init), EINVAL);
	init.cap.max_send_sge = 2;
	qp = ibv_create_qp(pd, &init);
	CHECK(qp && qp->qp_num && qp->state == IBV_QPS_RESET && init.cap.max_send_wr >= 8);
	CHECK(ibv_qp_to_qp_ex(qp) == NULL);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
	attr.qp_state = 77;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == EINVAL);
	CHECK(ibv_modify_qp(qp, &attr, 1 << 30) == EINVAL);
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 9;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS) == EINVAL);
	CHECK(qp->state == IBV_QPS_RESET);
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
	CHECK(ibv_post_recv(qp, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	CHECK(attr.qp_state == IBV_QPS_RESET && init.send_cq == cq && init.qp_type == IBV_QPT_RC);
	CHECK(ibv_query_ece(qp, &ece) == EOPNOTSUPP && ibv_set_ece(qp, &ece) == EOPNOTSUPP);
	CHECK(ibv_attach_mcast(qp, &gid, 0) == EINVAL); /* takes no datagrams */
	CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_SEND, 0) == 0);
	CHECK(ibv_destroy_qp(qp) == 0);

	FAILS(ibv_create_qp_ex(ctx, &ex), EOPNOTSUPP);
	ex.send_ops_flags = IBV_QP_EX_WITH_SEND;
	ex.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
	ex.create_flags = IBV_QP_CREATE_CVLAN_STRIPPING;
	FAILS(ibv_create_qp_ex(ctx, &ex), EOPNOTSUPP);
	ex.create_flags = 0;
	qp = ibv_create_qp_ex(ctx, &ex);
	CHECK(qp && ibv_qp_to_qp_ex(qp) && ibv_destroy_qp(qp) == 0);
	ex.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	FAILS(ibv_create_qp_ex(ctx, &ex), EINVAL);
	ex.qp_type = IBV_QPT_XRC_RECV; /* which has another domain, here none */
	ex.comp_mask = IBV_QP_INIT_ATTR_XRCD;
	FAILS(ibv_create_qp_ex(ctx, &ex), EINVAL);
	CHECK(ibv_destroy_cq(cq) == 0);
}

/* One domain, its receive queue with a number, and a queue pair that is opened twice. */
static void extended_connections(void)
{
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT,
	};
	struct ibv_srq_init_attr_ex srq_attr = {
		.attr = { .max_wr = 4, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ |
			     IBV_SRQ_INIT_ATTR_XRCD,
		.srq_type = IBV_SRQT_XRC,
		.pd = pd,
	};
	struct ibv_qp_init_attr_ex qp_attr = {
		.qp_type = IBV_QPT_XRC_RECV,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD,
	};
	struct ibv_qp_open_attr open_attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
			     IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT,
		.qp_context = &open_attr,
		.qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct ibv_srq_init_attr plain_attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq, *plain;
	struct ibv_xrcd *xrcd;
	struct ibv_qp *qp, *again;
	uint32_t number = 0;

	xrcd = ibv_open_xrcd(ctx, &domain);
	CHECK(cq && xrcd && xrcd->context == ctx);
	domain.fd = 12345;
	FAILS(ibv_open_xrcd(ctx, &domain), EBADF);

	FAILS(ibv_create_srq_ex(ctx, &srq_attr), EINVAL);
	srq_attr.xrcd = xrcd;
	srq_attr.cq = cq;
	srq = ibv_create_srq_ex(ctx, &srq_attr);
	CHECK(srq && ibv_get_srq_num(srq, &number) == 0 && number != 0);
	plain = ibv_create_srq(pd, &plain_attr);
	CHECK(plain && ibv_get_srq_num(plain, &number) == EINVAL && ibv_destroy_srq(plain) == 0);
	srq_attr.srq_type = IBV_SRQT_TM;
	FAILS(ibv_create_srq_ex(ctx, &srq_attr), EOPNOTSUPP);

	qp_attr.xrcd = xrcd;
	qp = ibv_create_qp_ex(ctx, &qp_attr);
	CHECK(qp && !qp->pd && !qp->send_cq && !qp->srq && qp->qp_type == IBV_QPT_XRC_RECV);
	open_attr.xrcd = xrcd;
	open_attr.qp_num = qp->qp_num ^ 1;
	FAILS(ibv_open_qp(ctx, &open_attr), EINVAL);
	open_attr.qp_num = qp->qp_num;
	again = ibv_open_qp(ctx, &open_attr);
	CHECK(again && again != qp && again->qp_num == qp->qp_num);
	CHECK(again->qp_context == &open_attr);
	CHECK(ibv_close_xrcd(xrcd) == EBUSY && ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_destroy_qp(qp) == 0);
	qp = ibv_open_qp(ctx, &open_attr);
	CHECK(qp && ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(again) == 0);
	FAILS(ibv_open_qp(ctx, &open_attr), EINVAL);
	CHECK(ibv_close_xrcd(xrcd) == EBUSY && ibv_destroy_srq(srq) == 0);
	CHECK(ibv_close_xrcd(xrcd) == 0 && ibv_destroy_cq(cq) == 0);
}

static void device_memory(void)
{
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	char text[8] = "0123456", copy[8] = "";
	struct ibv_device_attr_ex device;
	struct ibv_dm *dm, *same;
	struct ibv_mr *mr;
	int access = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE;

	CHECK(ibv_query_device_ex(ctx, NULL, &device) == 0 && device.max_dm_size >= 4096);
	attr.length = device.max_dm_size + 1;
	FAILS(ibv_alloc_dm(ctx, &attr), ENOMEM);
	attr.length = 64;
	attr.comp_mask = 1;
	FAILS(ibv_alloc_dm(ctx, &attr), EINVAL);
	attr.comp_mask = 0;
	dm = ibv_alloc_dm(ctx, &attr);
	CHECK(dm && dm->context == ctx);
	CHECK(ibv_memcpy_to_dm(dm, 56, text, sizeof(text)) == 0);
	CHECK(ibv_memcpy_from_dm(copy, dm, 56, sizeof(copy)) == 0 && strcmp(copy, text) == 0);
	CHECK(ibv_memcpy_to_dm(dm, 60, text, sizeof(text)) == EINVAL);
	CHECK(ibv_memcpy_to_dm(dm, 2, text, sizeof(text)) == EINVAL);
	CHECK(ibv_memcpy_from_dm(copy, dm, ~0ULL - 3, 4) == EINVAL);
	same = ibv_import_dm(ctx, dm->handle);
	CHECK(same && ibv_memcpy_from_dm(copy, same, 56, 4) == 0);
	ibv_unimport_dm(same);
	FAILS(ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	FAILS(ibv_reg_dm_mr(pd, dm, 4, 64, access), EINVAL);
	mr = ibv_reg_dm_mr(pd, dm, 4, 60, access);
	CHECK(mr && mr->length == 60 && ibv_free_dm(dm) == EBUSY);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_free_dm(dm) == 0);
}

/* Other names of this process's own objects, found by descriptor and handle. */
static void importing(void)
{
	static char memory[64];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_context *other;
	struct ibv_pd *same_pd;
	struct ibv_mr *same_mr;
	int fd = dup(ctx->cmd_fd);

	CHECK(mr && fd >= 0);
	FAILS(ibv_import_device(-1), EBADF);
	FAILS(ibv_import_device(STDOUT_FILENO), EOPNOTSUPP);
	other = ibv_import_device(fd);
	CHECK(other && other != ctx && other->device == ctx->device && close(fd) == 0);
	FAILS(ibv_import_pd(other, ~0U), EINVAL);
	same_pd = ibv_import_pd(other, pd->handle);
	CHECK(same_pd && same_pd != pd && same_pd->context == other);
	FAILS(ibv_import_mr(same_pd, mr->handle ^ 1), EINVAL);
	same_mr = ibv_import_mr(same_pd, mr->handle);
	CHECK(same_mr && same_mr->lkey == mr->lkey && same_mr->rkey == mr->rkey);
	ibv_unimport_mr(same_mr);
	ibv_unimport_pd(same_pd);
	CHECK(ibv_close_device(other) == 0 && ibv_dereg_mr(mr) == 0);
}

static void not_offered(void)
{
	struct ibv_xrcd_init_attr xrcd = { 0 };

	FAILS(ibv_open_xrcd(ctx, &xrcd), EINVAL); /* without what it must name */
	FAILS(ibv_alloc_null_mr(pd), EOPNOTSUPP);
}

/* --- Data between two queue pairs of this process --------------------------------------------- */

struct side {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	_Alignas(8) char memory[4096];
};

static struct side one, two;

#define SEND_QUEUE 16

static void make_side(struct side *side, struct ibv_srq *srq, int extended)
{
	struct ibv_cq_init_attr_ex cq_init = {
		.cqe = 64,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct ibv_qp_init_attr_ex init = {
		.srq = srq,
		.cap = { SEND_QUEUE, 16, 4, 4, 64 },
		.qp_type = IBV_QPT_RC,
		.pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
				  IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ,
	};

	memset(side->memory, 0, sizeof(side->memory));
	side->channel = ibv_create_comp_channel(ctx);
	cq_init.channel = side->channel;
	side->cq = extended ? ibv_cq_ex_to_cq(ibv_create_cq_ex(ctx, &cq_init)) :
			      ibv_create_cq(ctx, 64, side, side->channel, 0);
	init.send_cq = init.recv_cq = side->cq;
	side->qp = ibv_create_qp_ex(ctx, &init);
	side->mr = ibv_reg_mr(pd, side->memory, sizeof(side->memory), ALL_ACCESS);
	CHECK(side->channel && side->cq && side->qp && side->mr);
}

static void free_side(struct side *side)
{
	CHECK(ibv_destroy_qp(side->qp) == 0 && ibv_destroy_cq(side->cq) == 0);
	CHECK(ibv_destroy_comp_channel(side->channel) == 0 && ibv_dereg_mr(side->mr) == 0);
}

static void raise_to_rts(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				   IBV_ACCESS_REMOTE_ATOMIC,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 4,
		.max_rd_atomic = 4,
		.min_rnr_timer = 12,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 1 } },
	};

	CHECK(ibv_query_gid(ctx, 1, 0, &attr.ah_attr.grh.dgid) == 0);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					       IBV_QP_ACCESS_FLAGS) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
					       IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					       IBV_QP_MAX_DEST_RD_ATOMIC |
					       IBV_QP_MIN_RNR_TIMER) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					       IBV_QP_MAX_QP_RD_ATOMIC) == 0);
	CHECK(qp->state == IBV_QPS_RTS);
}

static void make_pair(struct ibv_srq *srq, int extended)
{
	make_side(&one, NULL, 0);
	make_side(&two, srq, extended);
	raise_to_rts(one.qp, two.qp->qp_num);
	raise_to_rts(two.qp, one.qp->qp_num);
}

static void free_pair(void)
{
	free_side(&one);
	free_side(&two);
}

static struct ibv_wc completion(struct side *side)
{
	double end = now() + 10;
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(side->cq, 1, &wc)) == 0)
		CHECK(now() < end);
	CHECK(n == 1);
	return wc;
}

/* The entry where it is not aligned: libiscsi packs its structures. */
static struct ibv_sge *packed(const struct ibv_sge *sge)
{
	static _Alignas(8) char room[1 + sizeof *sge];

	memcpy(room + 1, sge, sizeof *sge);
	return (void *)(room + 1);
}

static void post_receive(struct side *side, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)side->memory + 2048, 1024, side->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = packed(&sge), .num_sge = 1 }, *bad;

	CHECK(ibv_post_recv(side->qp, &wr, &bad) == 0);
}

static void posted_work(void)
{
	struct ibv_sge sge = { (uintptr_t)one.memory, 5, one.mr->lkey };
	struct ibv_send_wr write = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { (uintptr_t)two.memory, two.mr->rkey },
	};
	struct ibv_send_wr send = {
		.wr_id = 2,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
		.imm_data = htobe32(0x01020304),
	};
	struct ibv_send_wr wrong = { .wr_id = 3, .opcode = IBV_WR_TSO }, *bad = NULL;
	struct ibv_wc wc;

	strcpy(one.memory, "data");
	post_receive(&two, 100);
	write.sg_list = packed(&sge);
	write.next = &send;
	send.next = &wrong; /* The first two are posted; the third is reported. */
	CHECK(ibv_post_send(one.qp, &write, &bad) == EINVAL && bad == &wrong);
	wc = completion(&one);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND);
	wc = completion(&two);
	CHECK(wc.wr_id == 100 && wc.opcode == IBV_WC_RECV && wc.byte_len == 5);
	CHECK(wc.wc_flags == IBV_WC_WITH_IMM && be32toh(wc.imm_data) == 0x01020304);
	CHECK(wc.qp_num == two.qp->qp_num);
	CHECK(strcmp(two.memory, "data") == 0 && strcmp(two.memory + 2048, "data") == 0);
	send.next = NULL;
	send.num_sge = -1;
	CHECK(ibv_post_send(one.qp, &send, &bad) == EINVAL && bad == &send);
	send.num_sge = 5;
	CHECK(ibv_post_send(one.qp, &send, &bad) == EINVAL);
	send.num_sge = 1;
	sge.length = 65; /* more than max_inline_data */
	CHECK(ibv_post_send(one.qp, &send, &bad) == EINVAL);
	send.send_flags = IBV_SEND_IP_CSUM;
	CHECK(ibv_post_send(one.qp, &send, &bad) == EINVAL);
}

static void read_and_atomics(void)
{
	struct ibv_sge sge = { (uintptr_t)one.memory + 64, 8, one.mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.atomic = { (uintptr_t)two.memory + 64, 5, 0, two.mr->rkey },
	}, *bad;
	uint64_t *here = (uint64_t *)(one.memory + 64), *there = (uint64_t *)(two.memory + 64);

	*there = 7;
	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
	CHECK(completion(&one).opcode == IBV_WC_FETCH_ADD && *here == 7 && *there == 12);
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr.wr.atomic.compare_add = 12;
	wr.wr.atomic.swap = 99;
	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
	CHECK(completion(&one).opcode == IBV_WC_COMP_SWAP && *here == 12 && *there == 99);
	wr.opcode = IBV_WR_RDMA_READ;
	wr.wr.rdma.remote_addr = (uintptr_t)there;
	wr.wr.rdma.rkey = two.mr->rkey;
	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
	CHECK(completion(&one).opcode == IBV_WC_RDMA_READ && *here == 99);
}

static void windows(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_mw_bind bind = {
		.wr_id = 9,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { two.mr, (uintptr_t)two.memory, 16, IBV_ACCESS_REMOTE_WRITE },
	};
	struct ibv_sge sge = { (uintptr_t)one.memory, 5, one.mr->lkey };
	struct ibv_send_wr write = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)two.memory, 0 },
	}, *bad;
	uint32_t before;

	CHECK(mw);
	before = mw->rkey;
	CHECK(ibv_bind_mw(two.qp, mw, &bind) == 0 && mw->rkey != before);
	CHECK(completion(&two).status == IBV_WC_SUCCESS);
	CHECK(ibv_dereg_mr(two.mr) == EBUSY);
	strcpy(one.memory, "mw");
	write.wr.rdma.rkey = mw->rkey;
	CHECK(ibv_post_send(one.qp, &write, &bad) == 0);
	CHECK(completion(&one).status == IBV_WC_SUCCESS && strcmp(two.memory, "mw") == 0);
	CHECK(ibv_dealloc_mw(mw) == 0);
}

/* The clock of completions' time stamps, in nanoseconds as hca_core_clock says. */
static uint64_t clock_ticks(void)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	struct ibv_device_attr_ex device;

	CHECK(ibv_query_device_ex(ctx, NULL, &device) == 0 && device.hca_core_clock == 1000000);
	CHECK(ibv_query_rt_values_ex(ctx, &values) == 0);
	CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	return values.raw_clock.tv_sec * 1000000000ULL + values.raw_clock.tv_nsec;
}

static void built_work(void)
{
	struct ibv_poll_cq_attr poll_attr = { 0 };
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(one.qp);
	struct ibv_cq_ex *cq = (struct ibv_cq_ex *)two.cq;
	struct ibv_data_buf pieces[2] = { { "ab", 2 }, { "cd", 3 } };
	double end = now() + 10;
	uint64_t before, first;
	int n;

	before = clock_ticks();
	post_receive(&two, 200);
	post_receive(&two, 201);
	ibv_wr_start(qp);
	qp->wr_id = 1;
	ibv_wr_send(qp);
	ibv_wr_abort(qp); /* discards it */

	ibv_wr_start(qp);
	ibv_wr_send_tso(qp, NULL, 0, 0); /* spoils the batch */
	ibv_wr_send(qp);
	CHECK(ibv_wr_complete(qp) == EOPNOTSUPP);

	ibv_wr_start(qp);
	for (int i = 0; i < SEND_QUEUE + 1; i++)
		ibv_wr_send(qp); /* one more than there is room for: none is sent */
	CHECK(ibv_wr_complete(qp) == ENOMEM);

	strcpy(one.memory, "gather");
	ibv_wr_start(qp);
	qp->wr_id = 2;
	qp->wr_flags = 0;
	ibv_wr_send_imm(qp, htobe32(42));
	ibv_wr_set_sge(qp, one.mr->lkey, (uintptr_t)one.memory, 7);
	qp->wr_id = 3;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_inline_data_list(qp, 2, pieces);
	CHECK(ibv_wr_complete(qp) == 0);
	CHECK(completion(&one).wr_id == 3);

	while ((n = ibv_start_poll(cq, &poll_attr)) == ENOENT)
		CHECK(now() < end);
	CHECK(n == 0 && cq->wr_id == 200 && cq->status == IBV_WC_SUCCESS);
	CHECK(ibv_wc_read_opcode(cq) == IBV_WC_RECV && ibv_wc_read_byte_len(cq) == 7);
	CHECK(ibv_wc_read_wc_flags(cq) == IBV_WC_WITH_IMM);
	CHECK(be32toh(ibv_wc_read_imm_data(cq)) == 42);
	CHECK(ibv_wc_read_qp_num(cq) == two.qp->qp_num && ibv_wc_read_vendor_err(cq) == 0);
	first = ibv_wc_read_completion_ts(cq);
	CHECK(first >= before && first <= clock_ticks());
	CHECK(ibv_wc_read_completion_wallclock_ns(cq) / 1000000000 - (uint64_t)time(NULL) + 2 < 4);
	while ((n = ibv_next_poll(cq)) == ENOENT)
		CHECK(now() < end);
	CHECK(ibv_wc_read_completion_ts(cq) >= first);
	CHECK(n == 0 && cq->wr_id == 201 && ibv_wc_read_byte_len(cq) == 5);
	CHECK(ibv_next_poll(cq) == ENOENT);
	ibv_end_poll(cq);
	CHECK(strcmp(two.memory + 2048, "abcd") == 0);
}

/* --- Events ----------------------------------------------------------------------------------- */

static atomic_bool acknowledged;

static void *acknowledge_cq_later(void *cq)
{
	usleep(100000);
	acknowledged = 1;
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void *acknowledge_event_later(void *event)
{
	usleep(100000);
	acknowledged = 1;
	ibv_ack_async_event(event);
	return NULL;
}

static void completion_events(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct pollfd pfd = { .events = POLLIN };
	struct ibv_cq *cq;
	pthread_t thread;
	void *user;

	make_pair(NULL, 0);
	post_receive(&two, 1);
	CHECK(ibv_req_notify_cq(two.cq, 0) == 0);
	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
	pfd.fd = two.channel->fd;
	CHECK(poll(&pfd, 1, 10000) == 1);
	CHECK(ibv_get_cq_event(two.channel, &cq, &user) == 0);
	CHECK(cq == two.cq && user == &two);
	CHECK(completion(&two).wr_id == 1);
	CHECK(completion(&one).status == IBV_WC_SUCCESS);
	/* Destroying the queue waits for the acknowledgement. */
	CHECK(ibv_destroy_qp(two.qp) == 0);
	acknowledged = 0;
	CHECK(pthread_create(&thread, NULL, acknowledge_cq_later, two.cq) == 0);
	CHECK(ibv_destroy_cq(two.cq) == 0 && acknowledged);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(ibv_destroy_comp_channel(two.channel) == 0 && ibv_dereg_mr(two.mr) == 0);
	free_side(&one);
}

static void async_events(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq_attr attr = { .srq_limit = 17 };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_sge sge = { (uintptr_t)two.memory, 16, 0 };
	struct ibv_recv_wr recv = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 }, *bad_recv = NULL;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_async_event event;
	pthread_t thread;

	CHECK(srq && srq->context == ctx && init.attr.max_wr >= 16);
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == EINVAL);
	CHECK(ibv_modify_srq(srq, &attr, 1 << 9) == EINVAL);
	make_pair(srq, 0);
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(ibv_post_recv(two.qp, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	sge.lkey = two.mr->lkey;
	recv.num_sge = 2;
	CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	recv.num_sge = 1;
	CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) == 0);
	attr.srq_limit = 1;
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == 0);
	CHECK(ibv_query_srq(srq, &attr) == 0 && attr.srq_limit == 1 && attr.max_wr >= 16);
	CHECK(ibv_post_send(one.qp, &wr, &bad) == 0);
	CHECK(completion(&two).wr_id == 5 && completion(&one).status == IBV_WC_SUCCESS);
	CHECK(ibv_get_async_event(ctx, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	ibv_ack_async_event(&event);

	/* A queue pair with a shared receive queue says when it takes no more from it. */
	CHECK(ibv_modify_qp(two.qp, &error, IBV_QP_STATE) == 0);
	CHECK(ibv_get_async_event(ctx, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == two.qp);
	acknowledged = 0;
	CHECK(pthread_create(&thread, NULL, acknowledge_event_later, &event) == 0);
	CHECK(ibv_destroy_qp(two.qp) == 0 && acknowledged);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(ibv_destroy_cq(two.cq) == 0 && ibv_destroy_comp_channel(two.channel) == 0);
	CHECK(ibv_dereg_mr(two.mr) == 0 && ibv_destroy_srq(srq) == 0);
	free_side(&one);

	CHECK(fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(ibv_get_async_event(ctx, &event) == -1 && errno == EAGAIN);
	CHECK(fcntl(ctx->async_fd, F_SETFL, 0) == 0);
}

static void *wait_for_cq(void *channel)
{
	struct ibv_cq *cq;
	void *user;

	ibv_get_cq_event(channel, &cq, &user);
	return NULL;
}

static void *wait_for_async(void *context)
{
	struct ibv_async_event event;

	ibv_get_async_event(context, &event);
	return NULL;
}

/* Programs cancel threads that wait for events (rping, libiscsi). */
static void cancellation(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, channel, 0);
	pthread_t threads[2];
	void *result;

	CHECK(channel && cq && ibv_req_notify_cq(cq, 0) == 0);
	CHECK(pthread_create(&threads[0], NULL, wait_for_cq, channel) == 0);
	CHECK(pthread_create(&threads[1], NULL, wait_for_async, ctx) == 0);
	usleep(50000);
	for (int i = 0; i < 2; i++) {
		CHECK(pthread_cancel(threads[i]) == 0);
		CHECK(pthread_join(threads[i], &result) == 0 && result == PTHREAD_CANCELED);
	}
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
}

int main(void)
{
	alarm(120);
	versions();
	like_the_system();
	open_first_device();
	attributes();
	pd = ibv_alloc_pd(ctx);
	CHECK(pd && pd->context == ctx);
	domains();
	regions();
	completion_queues();
	address_handles();
	datagrams();
	queue_pairs();
	extended_connections();
	device_memory();
	importing();
	not_offered();
	make_pair(NULL, 0);
	posted_work();
	read_and_atomics();
	windows();
	free_pair();
	make_pair(NULL, 1);
	built_work();
	free_pair();
	completion_events();
	async_events();
	cancellation();
	CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0);
	return 0;
}
