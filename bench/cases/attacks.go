package cases

import (
	"fmt"
	"strings"
)

// aim is what an attacker knows of its victim: all but what is secret.
type aim struct {
	image    string // registry:80/…/b, without a tag
	tag      string // with the tag that is being built
	address  string // of the daemon's pod
	cacheID  string // of its cache mount
	secretID string // of its build secret
	recipe   string // its Dockerfile
}

// attack is one hostile build. Its context holds own.txt, with a nonce of its own, and
// the program attacker. What it finds it writes to its output and below /loot.
type attack struct {
	name       string
	dockerfile string
	// fails says that the build cannot come through: by what it does itself, or
	// because BuildKit or buildkit-build refuses it.
	fails bool
	// either says that it depends on the moment whether it fails.
	either bool
	// silent says that it never comes to run an instruction.
	silent bool
	// parent has it built as the image above the victim's, registry:80/….
	parent bool
	// secret gives it one of its own by the victim's id.
	secret bool
	links  map[string]string // symbolic links in its context
}

// script gives a Dockerfile that runs a script, and then shows its own nonce and what
// was found. Whatever the script does, its exit code does not count.
func script(options, text string) string {
	return "FROM registry:80/base/busybox:latest\nCOPY own.txt attacker /own/\n" +
		"RUN " + options + " <<'END'\nmkdir -p /loot; cp /own/own.txt /loot; cat /own/own.txt\n(\n" + text + "\n) >/loot/found 2>&1\n" +
		"head -c 200000 /loot/found; exit 0\nEND\n"
}

// attacks gives all of them, in the order in which they are run.
func attacks(v aim) []attack {
	all := func(mounts ...string) string { return strings.Join(mounts, " ") }
	cacheMount := func(i int, id, more string) string {
		return fmt.Sprintf("--mount=type=cache,id=%s,target=/c%d%s", id, i, more)
	}
	guessed := []string{v.image + "/" + v.cacheID, v.image + ":/" + v.cacheID, "../" + v.image + ":/" + v.cacheID, "/" + v.cacheID, "/../" + v.cacheID, "b/" + v.cacheID, "b:/" + v.cacheID}
	var mounts []string
	for i, id := range guessed {
		mounts = append(mounts, cacheMount(i, id, ""))
	}
	const readCaches = "for d in /c*; do ls -la $d; cat $d/*; done"
	// It wins if the victim comes second, or waits for a lock.
	poison := readCaches + "\nrm -rf /c*/*; for d in /c*; do echo poisoned >$d/nonce; echo poisoned >$d/more; done; sleep 3"
	return []attack{
		{name: "all of /proc", dockerfile: script("", `
ps; cat /proc/self/status
for p in /proc/[0-9]*; do
  ls -l $p $p/fd $p/root $p/cwd; cat $p/environ $p/cmdline $p/mountinfo $p/root/run/secrets/* $p/cwd/*.txt
done
timeout -s KILL 10 find /proc -type f -size -100000k ! -name kmsg ! -name 'trace*' -print0 | timeout -s KILL 10 xargs -0 -n 20 timeout -s KILL 2 head -c 20000`)},
		{name: "all of /sys, /dev, /run, /var, /tmp and the mounts", dockerfile: script("", `
cat /proc/mounts; ls -laR /dev /run /var /tmp /etc /root
cut -d ' ' -f 2 /proc/mounts | while read m; do ls -la $m $m/..; done
timeout -s KILL 10 find /run /var /tmp /etc /dev /root -type f | xargs -n 20 timeout -s KILL 2 head -c 20000
timeout -s KILL 10 find /sys -type f | timeout -s KILL 10 xargs -n 50 timeout -s KILL 2 head -c 5000`)},
		{name: "the same cache mount", dockerfile: script(cacheMount(0, v.cacheID, ""), "for i in 1 2 3 4 5 6; do "+readCaches+"; sleep 0.5; done")},
		{name: "cache mounts by guessed ids", dockerfile: script(all(mounts...), "for i in 1 2 3 4 5 6; do "+readCaches+"; sleep 0.5; done")},
		{name: "cache mounts as the image above", parent: true, dockerfile: script(all(mounts...), "for i in 1 2 3 4 5 6; do "+readCaches+"; sleep 0.5; done")},
		{name: "a cache mount that is filled and locked", dockerfile: script(cacheMount(0, v.cacheID, ",sharing=locked"), poison)},
		{name: "the victim's own instructions over a filled cache mount", secret: true, dockerfile: "FROM registry:80/base/busybox:latest AS filled\n" +
			"RUN --mount=type=cache,id=" + v.cacheID + ",target=/c echo poisoned >/c/more; echo >/filled\nFROM registry:80/base/busybox:latest AS own\nCOPY own.txt /own/\nCOPY --from=filled /filled /\nRUN cat /own/own.txt\n" +
			v.recipe + "COPY --from=own /own /own\n"},
		{name: "the victim's secret by its id", dockerfile: script(all("--mount=type=secret,id="+v.secretID, "--mount=type=secret,id="+v.secretID+",env=STOLEN", "--mount=type=secret,id="+v.secretID+",target=/s"), "env; ls -la /run/secrets; cat /run/secrets/* /s")},
		{name: "the victim's secret, required", fails: true, dockerfile: "FROM registry:80/base/busybox:latest\nCOPY own.txt /own/\nRUN cat /own/own.txt\nRUN --mount=type=secret,id=" + v.secretID + ",required=true cat /run/secrets/*\n"},
		{name: "an SSH agent", fails: true, dockerfile: "FROM registry:80/base/busybox:latest\nCOPY own.txt /own/\nRUN cat /own/own.txt\nRUN --mount=type=ssh,required=true env\n"},
		{name: "the image that the victim is building", dockerfile: "FROM registry:80/base/busybox:latest AS wait\nCOPY own.txt /own/\nRUN cat /own/own.txt; sleep 3; mkdir /loot; cp /own/own.txt /loot\n" +
			"FROM wait\nRUN --mount=from=" + v.tag + ",target=/m cp -r /m /loot; cat /m/b/*\n", either: true, silent: true},
		{name: "a build context by a guessed name", fails: true, silent: true, dockerfile: script("--mount=type=bind,from=context,target=/m", "cp -r /m /loot")},
		{name: "paths that lead out", links: map[string]string{"up": "../../../../../../..", "etc": "/etc", "proc": "/proc/1/root"}, dockerfile: "FROM registry:80/base/busybox:latest AS early\nRUN ln -s / /out; ln -s /proc/1/root /host; ln -s /var/lib/buildkit /state\n" +
			strings.Replace(script(all("--mount=type=bind,source=../../../../../..,target=/c0", "--mount=type=cache,id=x,target=/c1/../../../../../../run/escape", "--mount=type=cache,id=y,from=early,source=/out/../../..,target=/c2", "--mount=type=tmpfs,target=/state/../../x"),
				"ls -laR /c0 /c1 /c2 /run /state; find / -xdev | head -5000; cat /c0/*/* /c2/run/* /links/etc/* /links/up/run/*; ls -la /links /links/up/ /links/proc/ /host/ /out/"), "COPY own.txt", "COPY --from=early / /\nCOPY own.txt /host/../../../../var/lib/buildkit/own\nCOPY own.txt /out/../../run/own\nCOPY . /links/\nWORKDIR /proc/1/root/../..\nCOPY own.txt", 1)},
		{name: "links that lead out, as sources", fails: true, silent: true, links: map[string]string{"up": "../../../../../../..", "proc": "/proc/1/root"}, dockerfile: "FROM registry:80/base/busybox:latest\nCOPY up proc /links/\n"},
		{name: "files of the daemon by ADD", fails: true, silent: true, dockerfile: "FROM registry:80/base/busybox:latest\nADD file:///var/lib/buildkit /loot/\nADD file:///etc/passwd /loot/\n"},
		{name: "a context above the context", fails: true, silent: true, dockerfile: "FROM registry:80/base/busybox:latest\nCOPY ../../../../../../etc/hostname /loot/\n"},
		{name: "a link to the daemon's files in the context", links: map[string]string{"state": "/var/lib/buildkit", "hosts": "../../../../etc/hosts"}, fails: true, silent: true, dockerfile: "FROM registry:80/base/busybox:latest\nCOPY state/ /loot/\nCOPY hosts/x /loot/\n"},
		{name: "many processes", dockerfile: script("", "ulimit -u 300; i=0; while [ $i -lt 300 ]; do sleep 30 & i=$((i+1)); done; sleep 2; ps | wc -l")},
		{name: "much memory", dockerfile: script("", "head -c 268435456 /dev/zero | tail -c 268435456 | wc -c")},
		{name: "much space", dockerfile: script("", "dd if=/dev/zero of=/tmp/full bs=1M count=100; dd if=/dev/zero of=/dev/shm/full bs=1M count=100; df; rm -f /tmp/full /dev/shm/full")},
		{name: "killing every process", dockerfile: script("", "ps; kill -9 1; for p in $(seq 2 400); do [ $p = $$ ] || kill -9 $p; done; ls /proc")},
		{name: "killing all at once", fails: true, dockerfile: "FROM registry:80/base/busybox:latest\nCOPY own.txt /own/\nRUN cat /own/own.txt; sleep 9 & kill -9 -1; kill -9 1; exit 137\n"},
		{name: "system calls that a shell has no words for", dockerfile: script("", "sleep 20 & /own/attacker")},
		{name: "mounts", dockerfile: script("", `
mkdir -p /m; for t in proc sysfs tmpfs cgroup cgroup2 devtmpfs debugfs tracefs securityfs bpf overlay; do mount -t $t none /m && { find /m | head -500; umount /m; }; done
for d in $(cut -f 4 /proc/partitions | grep .) $(seq 0 8); do mount /dev/$d /m && ls -laR /m | head -500; done
mount --bind / /m; mount -o remount,rw /proc/sys; umount /proc/kcore /proc/keys /etc/resolv.conf; pivot_root / /m; chroot /proc/1/root ls -la /
unshare -m true; unshare -U -r cat /proc/self/uid_map; nsenter -t 1 -m -n -p ls -la /; swapon /tmp; losetup -f`)},
		{name: "device nodes", dockerfile: script("", `
while read major minor blocks name; do case $major in [0-9]*) mknod /b$major-$minor b $major $minor && head -c 8388608 /b$major-$minor; rm -f /b$major-$minor;; esac; done </proc/partitions
for n in 1:1 1:2 1:4 1:11 5:1 10:229 10:200 10:237; do mknod /c$n c ${n%:*} ${n#*:} && timeout -s KILL 2 head -c 65536 /c$n; rm -f /c$n; done`)},
		{name: "the network", dockerfile: script("", fmt.Sprintf(`
ip a; ip r; cat /proc/net/* | head -c 100000; ip link add x type dummy; ip a add %[1]s/24 dev lo; ping -c 1 -W 1 127.0.0.1; arping -c 1 -w 1 -I lo %[1]s
for a in 127.0.0.1 %[1]s; do for p in 1234 80 22 6443 10250 3000; do echo try $a $p; echo | nc -w 1 $a $p; done; done
printf 'GET http://%[1]s:1234/ HTTP/1.0\r\n\r\n' | nc -w 3 127.0.0.1 3128`, v.address))},
		{name: "the kernel's settings", dockerfile: script("", `
find /proc/sys -type f | while read f; do v=$(timeout -s KILL 1 head -c 1000 $f) && echo "$v" >$f && echo wrote $f; done
echo h >/proc/sysrq-trigger; echo -1000 >/proc/self/oom_score_adj; echo 1 >/proc/self/clear_refs
find /sys -type f -perm -200 -path '*cgroup*' | while read f; do echo max >$f && echo wrote $f; done`)},
		{name: "the daemon's socket for traces", dockerfile: script("", `env | grep OTEL; ls -la /dev; if [ -e /dev/otel-grpc.sock ]; then echo the socket for "traces is" there; i=0; while [ $i -lt 50 ]; do head -c 1000000 /dev/urandom | timeout 1 nc local:/dev/otel-grpc.sock; i=$((i+1)); done; fi`)},
		{name: "output that is made for terminals", dockerfile: script("", `
printf '\033[2J\033[1;1H\033]0;taken\007\033[31m#99 DONE 0.0s\r\n\000\377\376\033P+q\033\\\b\b\b'
echo '{"digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000","reused":true}'; echo '::set-output name=digest::x'`) +
			"RUN cat /loot/found; head -c 1048576 /dev/zero | tr '\\0' x; echo; head -c 100000 /dev/urandom; printf '\\033c\\n'\n"},
		{name: "output without end", dockerfile: script("", "true") + "RUN timeout -s KILL 2 yes $(head -c 500 /dev/zero | tr '\\0' y); true\n"},
		{name: "exit code 137", fails: true, dockerfile: "FROM registry:80/base/busybox:latest\nCOPY own.txt /own/\nRUN cat /own/own.txt; exit 137\n"},
		{name: "exit code 139", fails: true, dockerfile: "FROM registry:80/base/busybox:latest\nCOPY own.txt /own/\nRUN cat /own/own.txt; sh -c 'kill -SEGV $$'; exit 139\n"},
		{name: "the daemon's network", fails: true, silent: true, dockerfile: script("--network=host", "nc -w 1 127.0.0.1 1234")},
		{name: "a privileged instruction", fails: true, silent: true, dockerfile: script("--security=insecure", "mount -t tmpfs none /mnt")},
		{name: "a frontend of its own", fails: true, silent: true, dockerfile: "# syntax=" + v.image + ":frontend\n" + script("", "")},
	}
}

// reachesTraces is what an attack says that finds the socket for traces.
const reachesTraces = "the socket for traces is there"
