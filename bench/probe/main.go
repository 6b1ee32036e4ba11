// Command probe is what the bench's checks run in pods: a server to reach and a
// client that says exactly why it does not reach one.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/elazarl/goproxy"
)

const usage = `probe serve ADDRESS        answer every request with the pod's name, until SIGTERM
probe proxy ADDRESS        let everybody everywhere, as a forward proxy without a policy
probe get URL              print status and body; any certificate will do
probe lookup NAME          print the name's addresses
probe read FILE            print the file
probe write FILE TEXT      write it

These print "reached: " and what answered, or fail after a few seconds:

probe tcp HOST:PORT                     connect, and see what the server says
probe udp-dns SERVER NAME               resolve by that server
probe tcp-dns SERVER NAME
probe doh URL NAME                      resolve by HTTPS (RFC 8484)
probe icmp ADDRESS                      echo
probe raw ADDRESS                       echo, in a frame past the kernel's routes and filters; needs CAP_NET_RAW
probe tls ADDRESS SNI HOST              ask ADDRESS, port 443 unless it names one, for HOST; "-" for no SNI
probe connect PROXY TARGET SNI HOST     the same through a proxy's tunnel to TARGET; "-" for SNI opens the tunnel only,
                                        an address is none, "http" asks there without TLS
probe proxy-get PROXY URL [HOST]        ask a proxy for a URL; a status of 400 or more is a failure
probe follow PROXY URL                  ask a proxy for a URL and follow redirects
probe many FILE                         all of these that the file names, one a line: NAME, a tab, and its words;
                                        prints NAME, "reached" or "not", and why; "-" reads standard input

PROXY is a URL, with its credentials, or "env" for that of HTTPS_PROXY. No certificate is checked.`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

// patience is for one probe.
const patience = 5 * time.Second

func run(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch {
	case len(args) == 2 && args[0] == "serve":
		name, err := os.Hostname()
		if err != nil {
			return err
		}
		return http.ListenAndServe(args[1], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) }))
	case len(args) == 2 && args[0] == "proxy":
		return http.ListenAndServe(args[1], goproxy.NewProxyHttpServer())
	case len(args) == 2 && args[0] == "get":
		return get(ctx, args[1])
	case len(args) == 2 && args[0] == "lookup":
		addresses, err := net.DefaultResolver.LookupHost(ctx, args[1])
		if err != nil {
			return err
		}
		fmt.Println(strings.Join(addresses, " "))
		return nil
	case len(args) == 2 && args[0] == "read":
		text, err := os.ReadFile(args[1])
		os.Stdout.Write(text)
		return err
	case len(args) == 3 && args[0] == "write":
		return os.WriteFile(args[1], []byte(args[2]), 0o644)
	case len(args) == 2 && args[0] == "many":
		return many(args[1], os.Stdout)
	}
	saw, err := reach(ctx, args)
	switch {
	case errors.Is(err, errArguments):
		return fmt.Errorf("%w\n%s", err, usage)
	case err == nil:
		fmt.Println("reached:", saw)
	}
	return err
}

func get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	answer, err := client.Do(req)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	fmt.Println(answer.StatusCode)
	_, err = io.Copy(os.Stdout, io.LimitReader(answer.Body, 1000))
	return err
}
