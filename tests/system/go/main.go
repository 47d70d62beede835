// A discovery handler for Akri on grpc-go, for the tests in external.rs.
//
// handler FOLDER NAME SOCKET   serves on FOLDER/SOCKET; prints "ready"; lines of its input:
//
//	register                  registers as NAME with the agent of FOLDER, named by an address; prints "registered"
//	register-by-path          registers by the bare path, which grpc-go sends as the authority
//	set ID…                   replaces the devices; prints "set"
//	asked                     prints the number of open streams
//
// The messages are few, so the handler encodes them field by field, by the numbers of Akri's discovery.proto.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
)

// codec passes encoded messages through.
type codec struct{}

func (codec) Name() string                        { return "proto" }
func (codec) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }
func (codec) Unmarshal(data []byte, to any) error {
	*to.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func text(message []byte, field protowire.Number, value string) []byte {
	message = protowire.AppendTag(message, field, protowire.BytesType)
	return protowire.AppendString(message, value)
}

// field returns the text in a field, empty if it is missing.
func field(message []byte, wanted protowire.Number) string {
	for len(message) > 0 {
		number, kind, length := protowire.ConsumeField(message)
		if length < 0 {
			return ""
		}
		if number == wanted && kind == protowire.BytesType {
			_, _, tag := protowire.ConsumeTag(message)
			value, _ := protowire.ConsumeString(message[tag:])
			return value
		}
		message = message[length:]
	}
	return ""
}

type handler struct {
	sync.Mutex
	ids  []string
	open int
	// Closed when the ids change.
	changed chan struct{}
}

func (h *handler) set(ids []string) {
	h.Lock()
	defer h.Unlock()
	close(h.changed)
	h.ids, h.changed = ids, make(chan struct{})
}

func (h *handler) discover(stream grpc.ServerStream) error {
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	h.opened(1)
	defer h.opened(-1)
	for {
		h.Lock()
		ids, changed := h.ids, h.changed
		h.Unlock()
		var response []byte
		for _, id := range ids {
			device := text(nil, 1, id)
			for name, value := range map[string]string{"GO_ID": id, "GO_DETAILS": strings.TrimSpace(field(request, 1))} {
				device = text(device, 2, string(text(text(nil, 1, name), 2, value)))
			}
			response = text(response, 1, string(device))
		}
		if err := stream.SendMsg(&response); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (h *handler) opened(more int) {
	h.Lock()
	defer h.Unlock()
	h.open += more
}

func register(target, name, endpoint string, options ...grpc.DialOption) error {
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	connection, err := grpc.NewClient(target, options...)
	if err != nil {
		return err
	}
	defer connection.Close()
	request := text(text(nil, 1, name), 2, endpoint)
	request = protowire.AppendVarint(protowire.AppendTag(request, 4, protowire.VarintType), 1)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var answer []byte
	return connection.Invoke(ctx, "/v0.Registration/RegisterDiscoveryHandler", &request, &answer, grpc.ForceCodec(codec{}))
}

func main() {
	folder, name, socket := os.Args[1], os.Args[2], os.Args[3]
	endpoint, agent := folder+"/"+socket, folder+"/agent-registration.sock"
	// A killed handler leaves its socket.
	os.Remove(endpoint)
	listener, err := net.Listen("unix", endpoint)
	if err != nil {
		panic(err)
	}
	discovers := &handler{changed: make(chan struct{})}
	server := grpc.NewServer(grpc.ForceServerCodec(codec{}))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "v0.DiscoveryHandler",
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{
			StreamName:    "Discover",
			ServerStreams: true,
			Handler:       func(_ any, stream grpc.ServerStream) error { return discovers.discover(stream) },
		}},
	}, discovers)
	go server.Serve(listener)
	fmt.Println("ready")
	dial := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", agent)
	})
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		said := words[0]
		switch words[0] {
		case "register":
			said, err = "registered", register("unix:"+agent, name, endpoint)
		case "register-by-path":
			said, err = "registered", register("passthrough:///"+agent, name, endpoint, dial)
		case "set":
			discovers.set(words[1:])
		case "asked":
			discovers.Lock()
			said = fmt.Sprint(discovers.open)
			discovers.Unlock()
		}
		if err != nil {
			said = err.Error()
		}
		fmt.Println(said)
	}
}
