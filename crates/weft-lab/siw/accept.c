/* Has a socket's receive callback look at what came before it was there. */
static void look_at_what_came(struct siw_cep *cep)
{
	struct sock *sk = cep->sock->sk;

	lock_sock(sk);
	local_bh_disable();
	if (!skb_queue_empty(&sk->sk_receive_queue))
		sk->sk_data_ready(sk);
	local_bh_enable();
	release_sock(sk);
}
