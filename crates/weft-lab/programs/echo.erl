%% An echo server and its client by gen_tcp: sockets in passive mode, a process for each.
%%
%% erl -noshell -run echo main serve PORT CONNECTIONS
%% erl -noshell -run echo main connect PORT BYTES
-module(echo).
-export([main/1]).

%% Prime: no buffer's size is a multiple of it.
-define(PERIOD, 65521).
-define(OPTIONS, [binary, {packet, raw}, {active, false}, {nodelay, true}]).
-define(TIMEOUT, 200000).

main([Role, Port, Number]) ->
    run(Role, list_to_integer(Port), list_to_integer(Number)),
    init:stop(0).

run("serve", Port, Connections) ->
    Options = [{ip, {127, 0, 0, 1}}, {reuseaddr, true} | ?OPTIONS],
    {ok, Listening} = gen_tcp:listen(Port, Options),
    Echoes = [accept(Listening) || _ <- lists:seq(1, Connections)],
    [receive {'DOWN', Echo, process, _, normal} -> ok end || Echo <- Echoes];
run("connect", Port, Length) ->
    Block = << <<((I bxor (I bsr 8)) band 255)>> || I <- lists:seq(0, ?PERIOD - 1) >>,
    Blocks = binary:copy(Block, Length div ?PERIOD + 1),
    <<Content:Length/binary, _/binary>> = Blocks,
    {ok, Server} = gen_tcp:connect({127, 0, 0, 1}, Port, ?OPTIONS, ?TIMEOUT),
    <<First:1/binary, Rest/binary>> = Content,
    %% A byte there and back, after which both ends know what carries the rest.
    ok = gen_tcp:send(Server, First),
    {ok, First} = gen_tcp:recv(Server, 1, ?TIMEOUT),
    spawn_link(fun() -> send(Server, Rest, 1) end),
    Content = iolist_to_binary([First | all(Server)]),
    io:format("echoed ~b~n", [Length]).

accept(Listening) ->
    {ok, Client} = gen_tcp:accept(Listening),
    {Pid, Echo} = spawn_monitor(fun() -> receive owner -> echo(Client) end end),
    ok = gen_tcp:controlling_process(Client, Pid),
    Pid ! owner,
    Echo.

echo(Client) ->
    case gen_tcp:recv(Client, 0) of
        {ok, Data} -> ok = gen_tcp:send(Client, Data), echo(Client);
        {error, closed} -> gen_tcp:close(Client)
    end.

send(Server, Rest, Chunk) when byte_size(Rest) =< Chunk ->
    ok = gen_tcp:send(Server, Rest),
    ok = gen_tcp:shutdown(Server, write);
send(Server, Content, Chunk) ->
    <<Piece:Chunk/binary, Rest/binary>> = Content,
    ok = gen_tcp:send(Server, Piece),
    send(Server, Rest, Chunk * 3 rem 70001 + 1).

all(Server) ->
    case gen_tcp:recv(Server, 0, ?TIMEOUT) of
        {ok, Data} -> [Data | all(Server)];
        {error, closed} -> []
    end.
