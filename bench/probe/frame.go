package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// etherIPv4 is the EtherType of IPv4 in network byte order, as packet(7) wants it.
var etherIPv4 = binary.NativeEndian.Uint16([]byte{0x08, 0x00})

// echoFrame sends an ICMP echo request as an Ethernet frame on the first interface that
// is not the loopback, to the default gateway or, if that is not known, to everybody.
func echoFrame(ctx context.Context, address string) (string, error) {
	to, err := netip.ParseAddr(address)
	if err != nil || !to.Is4() {
		return "", fmt.Errorf("sending a frame: %q is no IPv4 address", address)
	}
	link, from, err := firstLink()
	if err != nil {
		return "", err
	}
	socket, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW, int(etherIPv4))
	if err != nil {
		return "", fmt.Errorf("opening a packet socket: %w", err)
	}
	defer syscall.Close(socket)
	next := neighbour(link.Name)
	out := &syscall.SockaddrLinklayer{Protocol: etherIPv4, Ifindex: link.Index, Halen: 6}
	copy(out.Addr[:], next)
	id := uint16(os.Getpid())
	if err := syscall.Sendto(socket, frame(link.HardwareAddr, next, from, to, id), 0, out); err != nil {
		return "", fmt.Errorf("sending a frame by %s: %w", link.Name, err)
	}
	tick := syscall.NsecToTimeval(int64(100 * time.Millisecond))
	if err := syscall.SetsockoptTimeval(socket, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &tick); err != nil {
		return "", err
	}
	buffer := make([]byte, 2000)
	for ctx.Err() == nil {
		n, _, err := syscall.Recvfrom(socket, buffer, 0)
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return "", err
		}
		if isReply(buffer[:n], to, id) {
			return "echo from " + to.String(), nil
		}
	}
	return "", fmt.Errorf("a frame was sent to %s; no answer: %w", next, ctx.Err())
}

func firstLink() (net.Interface, netip.Addr, error) {
	links, err := net.Interfaces()
	if err != nil {
		return net.Interface{}, netip.Addr{}, err
	}
	for _, link := range links {
		addresses, err := link.Addrs()
		if err != nil || link.Flags&net.FlagLoopback != 0 || link.Flags&net.FlagUp == 0 || len(link.HardwareAddr) != 6 {
			continue
		}
		for _, a := range addresses {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Is4() {
				return link, prefix.Addr(), nil
			}
		}
	}
	return net.Interface{}, netip.Addr{}, errors.New("sending a frame: no interface has an IPv4 address")
}

// neighbour gives the hardware address of the link's default gateway as far as the
// kernel knows it, else that of all.
func neighbour(link string) net.HardwareAddr {
	everybody := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	routes, _ := os.ReadFile("/proc/net/route")
	for line := range strings.Lines(string(routes)) {
		f := strings.Fields(line) // link, destination, gateway, …
		if len(f) < 3 || f[0] != link || f[1] != "00000000" {
			continue
		}
		raw, err := hex.DecodeString(f[2])
		if err != nil || len(raw) != 4 {
			continue
		}
		// It is printed as if it were a number of the machine's byte order.
		gateway := netip.AddrFrom4([4]byte(binary.NativeEndian.AppendUint32(nil, binary.BigEndian.Uint32(raw))))
		if c, err := net.Dial("udp", net.JoinHostPort(gateway.String(), "9")); err == nil {
			c.Write([]byte("x")) // the kernel looks it up
			c.Close()
			time.Sleep(50 * time.Millisecond)
		}
		known, _ := os.ReadFile("/proc/net/arp")
		for line := range strings.Lines(string(known)) {
			if f := strings.Fields(line); len(f) == 6 && f[0] == gateway.String() && f[5] == link {
				if mac, err := net.ParseMAC(f[3]); err == nil && !bytes.Equal(mac, make([]byte, 6)) {
					return mac
				}
			}
		}
	}
	return everybody
}

// frame gives an ICMP echo request (RFC 792) in IPv4 (RFC 791) in Ethernet.
func frame(source, target net.HardwareAddr, from, to netip.Addr, id uint16) []byte {
	echo := binary.BigEndian.AppendUint16([]byte{8, 0, 0, 0}, id)
	echo = append(echo, 0, 1)
	binary.BigEndian.PutUint16(echo[2:], checksum(echo))
	ip := []byte{0x45, 0, 0, byte(20 + len(echo)), 0, 0, 0, 0, 64, 1, 0, 0}
	ip = append(append(ip, from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	return slices.Concat(target, source, []byte{0x08, 0x00}, ip, echo)
}

// isReply tells whether a frame answers that echo request.
func isReply(frame []byte, from netip.Addr, id uint16) bool {
	const ether = 14
	if len(frame) < ether+20 || frame[ether]>>4 != 4 || frame[ether+9] != 1 {
		return false
	}
	ip := frame[ether:]
	header := int(ip[0]&0xf) * 4
	return len(ip) >= header+8 && bytes.Equal(ip[12:16], from.AsSlice()) && ip[header] == 0 && binary.BigEndian.Uint16(ip[header+4:]) == id
}

// checksum is that of RFC 1071, of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
