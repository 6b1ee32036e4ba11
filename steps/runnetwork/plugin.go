package runnetwork

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
)

// answerLimit bounds how long the plugin waits for the relay, which may just start.
const answerLimit = 20 * time.Second

// plugin acts as the Container Network Interface tells: by the variables CNI_COMMAND,
// CNI_CONTAINERID and CNI_NETNS, with the configuration on standard input and the
// result on standard output. Exit code 1 with an error object for whatever goes wrong.
func plugin(name string) int {
	funcs := skel.CNIFuncs{Add: up, Del: nothing, Check: nothing}
	if name == Plugin {
		funcs = skel.CNIFuncs{Add: add, Del: remove, Check: nothing}
	}
	if err := skel.PluginMainFuncsWithError(funcs, version.All, name+": the network of RUN instructions"); err != nil {
		_ = err.Print()
		return 1
	}
	return 0
}

func nothing(*skel.CmdArgs) error { return nil }

// up brings the namespace's loopback interface up.
func up(args *skel.CmdArgs) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	if err := within(args.Netns, loopbackUp); err != nil {
		return fmt.Errorf("bringing up the loopback interface: %w", err)
	}
	return result(args, c, "lo")
}

// add opens the port inside the namespace and hands it to the relay, and takes the
// daemon's socket for traces away from the instruction.
func add(args *skel.CmdArgs) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	if c.TraceSocket != "" {
		if err := os.Remove(c.TraceSocket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("closing the daemon's socket for traces: %w", err)
		}
	}
	err = within(args.Netns, func() error {
		if err := loopbackUp(); err != nil {
			return fmt.Errorf("bringing up the loopback interface: %w", err)
		}
		l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(Proxy))
		if err != nil {
			return err
		}
		defer l.Close()
		fd, done, err := file(l)
		if err != nil {
			return err
		}
		defer done()
		return tell(c.Socket, request{Open: args.ContainerID}, fd)
	})
	if err != nil {
		return fmt.Errorf("leading %s to the egress gateway: %w", Proxy, err)
	}
	return result(args, c, args.IfName)
}

// remove closes the port. A relay that has restarted knows of none.
func remove(args *skel.CmdArgs) error {
	c, err := parse(args)
	if err != nil {
		return err
	}
	return tell(c.Socket, request{Close: args.ContainerID})
}

func parse(args *skel.CmdArgs) (conf, error) {
	var c conf
	if err := json.Unmarshal(args.StdinData, &c); err != nil {
		return c, fmt.Errorf("reading the network's configuration: %w", err)
	}
	return c, nil
}

// result tells BuildKit of an interface without an address.
func result(args *skel.CmdArgs, c conf, name string) error {
	r := &current.Result{CNIVersion: current.ImplementedSpecVersion, Interfaces: []*current.Interface{{Name: name, Sandbox: args.Netns}}}
	return types.PrintResult(r, c.CNIVersion)
}

// within runs do in a network namespace. The thread that was there ends with the
// goroutine: it is of no other use.
func within(netns string, do func() error) error {
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		failed <- func() error {
			f, err := os.Open(netns)
			if err != nil {
				return err
			}
			defer f.Close()
			if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("entering the network namespace %s: %w", netns, err)
			}
			return do()
		}()
	}()
	return <-failed
}

// loopbackUp acts on the thread's namespace (netdevice(7)).
func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, lo); err != nil {
		return err
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}

// tell sends the relay a request and waits for its answer.
func tell(socket string, r request, descriptors ...int) error {
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	conn, err := dial(ctx, socket)
	if err != nil {
		return fmt.Errorf("reaching the relay: %w", err)
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var rights []byte
	if len(descriptors) > 0 {
		rights = unix.UnixRights(descriptors...)
	}
	if _, _, err := conn.WriteMsgUnix(text, rights, nil); err != nil {
		return fmt.Errorf("telling the relay: %w", err)
	}
	buffer := make([]byte, maxMessage)
	n, err := conn.Read(buffer)
	if err != nil {
		return fmt.Errorf("waiting for the relay: %w", err)
	}
	var a answer
	if err := json.Unmarshal(buffer[:n], &a); err != nil {
		return fmt.Errorf("reading the relay's answer: %w", err)
	}
	if a.Error != "" {
		return errors.New("the relay says: " + a.Error)
	}
	return nil
}

// dial reaches the relay; it may not yet be there.
func dial(ctx context.Context, socket string) (*net.UnixConn, error) {
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, socket)
		if err == nil {
			return conn.(*net.UnixConn), nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// called gives the name that the program was called by.
func called(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return filepath.Base(args[0])
}
