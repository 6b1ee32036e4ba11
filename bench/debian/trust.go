package debian

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io/fs"
	"os"
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
// pip is configured for, and the CA bundle.
func PipConfig() string {
	// Where pip looks, the first wins (pip's user guide, "Configuration"). pip
	// itself takes a second to say, and a fresh Debian has none.
	files := []string{os.Getenv("PIP_CONFIG_FILE")}
	if home, err := os.UserHomeDir(); err == nil {
		files = append(files, filepath.Join(home, ".config/pip/pip.conf"), filepath.Join(home, ".pip/pip.conf"))
	}
	files = append(files, "/etc/xdg/pip/pip.conf", "/etc/pip.conf")
	var texts []string
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil {
			texts = append(texts, string(text))
		}
	}
	return pipConfig(os.Getenv, texts)
}

func pipConfig(getenv func(string) string, texts []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[global]\ncert = %s\n", CABundle)
	for _, name := range []string{"index-url", "extra-index-url", "trusted-host", "timeout"} {
		value := getenv("PIP_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
		for i := 0; i < len(texts) && value == ""; i++ {
			value = pipSetting(texts[i], name)
		}
		if value != "" {
			fmt.Fprintf(&b, "%s = %s\n", name, value)
		}
	}
	return b.String()
}

// pipSetting finds a setting of all commands or of "pip install".
func pipSetting(text, name string) string {
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[] ")
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if ok && (section == "global" || section == "install") && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
