package debian

import (
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// CABundle is where Debian keeps the certificates that are trusted.
const CABundle = "/etc/ssl/certs/ca-certificates.crt"

// Trust gives the machine's CA bundle, and those of its certificates that
// Debian's ca-certificates package does not bring along: an image needs them in
// /usr/local/share/ca-certificates too, or installing that package drops them.
func Trust() (bundle, local []byte, err error) {
	bundle, err = os.ReadFile(CABundle)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the machine's CA bundle: %w", err)
	}
	packaged := map[string]bool{}
	err = filepath.WalkDir("/usr/share/ca-certificates", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, cert := range certificates(text) {
			packaged[string(cert.Bytes)] = true
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("reading the packaged certificates: %w", err)
	}
	var out bytes.Buffer
	for _, cert := range certificates(bundle) {
		if !packaged[string(cert.Bytes)] {
			pem.Encode(&out, &pem.Block{Type: cert.Type, Bytes: cert.Bytes})
		}
	}
	return bundle, out.Bytes(), nil
}

func certificates(text []byte) []*pem.Block {
	var certs []*pem.Block
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			return certs
		}
		certs = append(certs, block)
	}
}

// PipConfig gives a pip.conf for an image, with the index that the machine's own
// pip is configured for. Without pip or configuration it only names the
// CA bundle.
func PipConfig(ctx context.Context) string {
	// Its absence is normal: a fresh Debian has no pip.
	out, _ := exec.CommandContext(ctx, "pip", "config", "list").Output()
	return pipConfig(string(out))
}

func pipConfig(list string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[global]\ncert = %s\n", CABundle)
	seen := map[string]bool{}
	// "global.index-url='https://…'"; the environment (":env:.") comes first and wins.
	for line := range strings.Lines(list) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		name := key[strings.LastIndex(key, ".")+1:]
		switch name {
		case "index-url", "extra-index-url", "trusted-host", "timeout", "default-timeout":
			if !seen[name] {
				seen[name] = true
				fmt.Fprintf(&b, "%s = %s\n", name, strings.Trim(value, `'"`))
			}
		}
	}
	return b.String()
}
