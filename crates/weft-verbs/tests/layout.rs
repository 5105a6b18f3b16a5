//! Compares the committed structures with the system's headers: a C program prints the size of each
//! structure and the offset of each field, which must equal those in Rust.
//!
//! Newer versions of rdma-core have longer forms of some structures. For structures that this
//! library accesses only up to the size that a program passes, the test compares the fields but not
//! the size (`grows`).

use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use weft_verbs::abi::*;

/// A C expression, and the value that it must have.
struct Fact {
    expression: String,
    value: usize,
}

macro_rules! structures {
    ($($name:ident $($grows:literal)? { $($field:ident)* })*) => {{
        let mut facts = Vec::new();
        $(
            let grows: &[&str] = &[$($grows)?];
            if grows.is_empty() {
                let expression = concat!("sizeof(struct ", stringify!($name), ")").to_owned();
                facts.push(Fact { expression, value: size_of::<$name>() });
            }
            $(
                let expression =
                    concat!("offsetof(struct ", stringify!($name), ", ", stringify!($field), ")")
                        .replace(", type_)", ", type)");
                facts.push(Fact { expression, value: offset_of!($name, $field) });
            )*
        )*
        facts
    }};
}

fn facts() -> Vec<Fact> {
    let mut facts = structures! {
        ibv_device { node_type transport_type name dev_name dev_path ibdev_path }
        ibv_context { device ops cmd_fd async_fd num_comp_vectors mutex abi_compat }
        ibv_context_ops { _compat_query_device _compat_query_port alloc_mw bind_mw dealloc_mw
            poll_cq req_notify_cq post_srq_recv post_send post_recv }
        ibv_device_attr { fw_ver node_guid sys_image_guid max_mr_size page_size_cap vendor_id
            vendor_part_id hw_ver max_qp max_qp_wr device_cap_flags max_sge max_sge_rd max_cq
            max_cqe max_mr max_pd max_qp_rd_atom max_ee_rd_atom max_res_rd_atom max_qp_init_rd_atom
            atomic_cap max_mw max_mcast_grp max_ah max_srq max_srq_wr max_srq_sge max_pkeys
            local_ca_ack_delay phys_port_cnt }
        ibv_device_attr_ex "grows" { orig_attr comp_mask odp_caps completion_timestamp_mask
            hca_core_clock device_cap_flags_ex tso_caps rss_caps max_wq_type_rq packet_pacing_caps
            raw_packet_caps tm_caps cq_mod_caps max_dm_size pci_atomic_caps xrc_odp_caps
            phys_port_cnt_ex }
        ibv_port_attr "grows" { state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz
            bad_pkey_cntr qkey_viol_cntr pkey_tbl_len lid sm_lid lmc max_vl_num sm_sl subnet_timeout
            init_type_reply active_width active_speed phys_state link_layer flags port_cap_flags2 }
        ibv_gid_entry { gid gid_index port_num gid_type ndev_ifindex }
        ibv_pd { context handle }
        ibv_td { context }
        ibv_td_init_attr { comp_mask }
        ibv_parent_domain_init_attr { pd td comp_mask alloc free pd_context }
        ibv_mr { context pd addr length handle lkey rkey }
        ibv_mw { context pd rkey handle type_ }
        ibv_mw_bind_info { mr addr length mw_access_flags }
        ibv_mw_bind { wr_id send_flags bind_info }
        ibv_comp_channel { context fd refcnt }
        ibv_cq { context channel cq_context handle cqe mutex cond comp_events_completed
            async_events_completed }
        ibv_cq_ex { context channel cq_context handle cqe mutex cond comp_events_completed
            async_events_completed comp_mask status wr_id start_poll next_poll end_poll read_opcode
            read_vendor_err read_byte_len read_imm_data read_qp_num read_src_qp read_wc_flags
            read_slid read_sl read_dlid_path_bits }
        ibv_cq_init_attr_ex { cqe cq_context channel comp_vector wc_flags comp_mask flags
            parent_domain }
        ibv_poll_cq_attr { comp_mask }
        ibv_wc { wr_id status opcode vendor_err byte_len qp_num src_qp wc_flags pkey_index slid sl
            dlid_path_bits }
        ibv_srq { context srq_context pd handle mutex cond events_completed }
        ibv_srq_attr { max_wr max_sge srq_limit }
        ibv_srq_init_attr { srq_context attr }
        ibv_srq_init_attr_ex { srq_context attr comp_mask srq_type pd }
        ibv_qp { context qp_context pd send_cq recv_cq srq handle qp_num state qp_type mutex cond
            events_completed }
        ibv_qp_ex "grows" { qp_base comp_mask wr_id wr_flags wr_atomic_cmp_swp wr_atomic_fetch_add
            wr_bind_mw wr_local_inv wr_rdma_read wr_rdma_write wr_rdma_write_imm wr_send wr_send_imm
            wr_send_inv wr_send_tso wr_set_ud_addr wr_set_xrc_srqn wr_set_inline_data
            wr_set_inline_data_list wr_set_sge wr_set_sge_list wr_start wr_complete wr_abort
            wr_atomic_write }
        ibv_qp_cap { max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data }
        ibv_qp_init_attr { qp_context send_cq recv_cq srq cap qp_type sq_sig_all }
        ibv_qp_init_attr_ex "grows" { qp_context send_cq recv_cq srq cap qp_type sq_sig_all
            comp_mask pd create_flags send_ops_flags }
        ibv_qp_attr { qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num
            qp_access_flags cap ah_attr alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify
            sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt
            rnr_retry alt_port_num alt_timeout rate_limit }
        ibv_sge { addr length lkey }
        ibv_data_buf { addr length }
        ibv_send_wr { wr_id next sg_list num_sge opcode send_flags wr qp_type }
        ibv_recv_wr { wr_id next sg_list num_sge }
        ibv_ah { context pd handle }
        ibv_ah_attr { grh dlid sl src_path_bits static_rate is_global port_num }
        ibv_global_route { dgid flow_label sgid_index hop_limit traffic_class }
        ibv_grh { version_tclass_flow paylen next_hdr hop_limit sgid dgid }
        ibv_async_event { element event_type }
        rdma_event_channel { fd }
        rdma_ib_addr { sgid dgid pkey }
        rdma_addr { addr }
        rdma_route { addr path_rec num_paths }
        rdma_cm_id { verbs channel context qp route ps port_num event send_cq_channel send_cq
            recv_cq_channel recv_cq srq pd qp_type }
        rdma_conn_param { private_data private_data_len responder_resources initiator_depth
            flow_control retry_count rnr_retry_count srq qp_num }
        rdma_ud_param { private_data private_data_len ah_attr qp_num qkey }
        rdma_cm_event { id listen_id event status param }
        rdma_addrinfo { ai_flags ai_family ai_qp_type ai_port_space ai_src_len ai_dst_len
            ai_src_addr ai_dst_addr ai_src_canonname ai_dst_canonname ai_route_len ai_route
            ai_connect_len ai_connect ai_next }
        rdma_cm_join_mc_attr_ex { comp_mask join_flags addr }
    };
    facts.extend(operations());
    facts.extend(unnamed());
    facts
}

/// The operations of `verbs_context`. The structure grows at its start, so that the distance of an
/// operation from `context` is compared.
fn operations() -> Vec<Fact> {
    macro_rules! before_context {
        ($($field:ident)*) => {
            vec![$(Fact {
                expression: concat!("offsetof(struct verbs_context, context) - \
                    offsetof(struct verbs_context, ", stringify!($field), ")").to_owned(),
                value: offset_of!(verbs_context, context) - offset_of!(verbs_context, $field),
            }),*]
        };
    }
    before_context! {
        query_port advise_mr alloc_null_mr reg_dm_mr alloc_dm free_dm modify_qp_rate_limit
        alloc_parent_domain dealloc_td alloc_td modify_cq post_srq_ops query_rt_values create_cq_ex
        query_device_ex open_qp create_qp_ex get_srq_num create_srq_ex open_xrcd close_xrcd sz
    }
}

/// The members of anonymous unions, which have a name in the generated structures.
fn unnamed() -> Vec<Fact> {
    let fact = |expression: &str, value| Fact { expression: expression.to_owned(), value };
    vec![
        fact("offsetof(struct ibv_wc, imm_data)", offset_of!(ibv_wc, __bindgen_anon_1)),
        fact("offsetof(struct ibv_send_wr, imm_data)", offset_of!(ibv_send_wr, __bindgen_anon_1)),
        fact("offsetof(struct ibv_send_wr, bind_mw)", offset_of!(ibv_send_wr, __bindgen_anon_2)),
        fact("offsetof(struct rdma_addr, src_addr)", offset_of!(rdma_addr, __bindgen_anon_1)),
        fact("offsetof(struct rdma_addr, dst_addr)", offset_of!(rdma_addr, __bindgen_anon_2)),
        fact("sizeof(union ibv_gid)", size_of::<ibv_gid>()),
    ]
}

fn program(facts: &[Fact]) -> String {
    let mut source = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n\
         #include <rdma/rdma_cma.h>\nint main(void)\n{\n",
    );
    for fact in facts {
        let expression = &fact.expression;
        writeln!(source, "\tprintf(\"%zu\\n\", (size_t)({expression}));").expect("to a string");
    }
    source + "\treturn 0;\n}\n"
}

#[test]
fn structures_match_the_system_headers() {
    assert!(
        Path::new("/usr/include/rdma/rdma_cma.h").exists(),
        "no verbs headers: apt-get install libibverbs-dev librdmacm-dev"
    );
    let facts = facts();
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (directory.join("layout.c"), directory.join("layout"));
    std::fs::write(&source, program(&facts)).expect("a writable target directory");
    let mut cc = Command::new("cc");
    let built = cc.arg("-o").arg(&binary).arg(&source).status();
    assert!(built.expect("no C compiler: apt-get install build-essential").success());
    let output = Command::new(&binary).output().expect("the program was just built");
    let printed = String::from_utf8(output.stdout).expect("numbers");
    let printed: Vec<usize> = printed.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(printed.len(), facts.len());
    for (fact, in_c) in facts.iter().zip(printed) {
        assert_eq!(fact.value, in_c, "{}", fact.expression);
    }
}
