// Command probe is what the bench's checks run in pods: a server to reach and a
// client that says exactly why it does not reach one.
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

const usage = `probe serve ADDRESS        answer every request with the pod's name, until SIGTERM
probe get URL              print status and body; any certificate will do
probe lookup NAME          print the name's addresses
probe read FILE            print the file
probe write FILE TEXT      write it`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	switch {
	case len(args) == 2 && args[0] == "serve":
		name, err := os.Hostname()
		if err != nil {
			return err
		}
		return http.ListenAndServe(args[1], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) }))
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
	}
	return fmt.Errorf("wrong arguments %q\n%s", args, usage)
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
