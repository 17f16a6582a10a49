import django.contrib.auth.models
import django.contrib.auth.validators
import django.core.validators
import django.db.models.deletion
import django.utils.timezone
import uuid
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    # Databases made from here on; those that are there go on by the migrations replaced.
    replaces = [
        ('tenants', '0001_initial'),
        ('tenants', '0002_audit_reverts'),
        ('tenants', '0003_tenant_max_priority'),
        ('tenants', '0004_tenant_namespace'),
        ('tenants', '0005_single_sign_on'),
        ('tenants', '0006_tenant_min_runtime'),
        ('tenants', '0007_token_scopes'),
        ('tenants', '0008_queues'),
        ('tenants', '0009_applied_documents'),
    ]

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
    ]

    operations = [
        migrations.CreateModel(
            name='AppliedDocument',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63, unique=True, validators=[django.core.validators.RegexValidator('\\A[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\Z', 'Use lower-case letters, digits and hyphens, at most 63, starting and ending with a letter or digit.')])),
                ('things', models.JSONField(blank=True, default=list)),
                ('applied_by', models.CharField(blank=True, max_length=150)),
                ('applied_at', models.DateTimeField(auto_now=True)),
            ],
        ),
        migrations.CreateModel(
            name='GpuType',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63, unique=True)),
                ('title', models.CharField(blank=True, max_length=200)),
                ('memory_mib', models.PositiveIntegerField(default=0)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='User',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('password', models.CharField(max_length=128, verbose_name='password')),
                ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('username', models.CharField(error_messages={'unique': 'A user with that username already exists.'}, help_text='Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.', max_length=150, unique=True, validators=[django.contrib.auth.validators.UnicodeUsernameValidator()], verbose_name='username')),
                ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                ('email', models.EmailField(blank=True, max_length=254, verbose_name='email address')),
                ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                ('is_operator', models.BooleanField(default=False)),
                ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
            ],
            options={
                'verbose_name': 'user',
                'verbose_name_plural': 'users',
                'abstract': False,
            },
            managers=[
                ('objects', django.contrib.auth.models.UserManager()),
            ],
        ),
        migrations.CreateModel(
            name='Tenant',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63, unique=True, validators=[django.core.validators.RegexValidator('\\A[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\Z', 'Use lower-case letters, digits and hyphens, at most 63, starting and ending with a letter or digit.')])),
                ('title', models.CharField(blank=True, max_length=200)),
                ('weight', models.FloatField(default=1.0, validators=[django.core.validators.MinValueValidator(0.001)])),
                ('max_running', models.PositiveIntegerField(blank=True, null=True)),
                ('max_waiting', models.PositiveIntegerField(blank=True, null=True)),
                ('max_priority', models.IntegerField(blank=True, null=True)),
                ('min_runtime_s', models.FloatField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(2592000)])),
                ('namespace', models.CharField(blank=True, max_length=63, null=True, unique=True, validators=[django.core.validators.RegexValidator('\\A[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\Z', 'Use lower-case letters, digits and hyphens, at most 63, starting and ending with a letter or digit.')])),
                ('is_active', models.BooleanField(default=True)),
                ('version', models.PositiveBigIntegerField(default=1)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('parent', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='children', to='tenants.tenant')),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='AuditRecord',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('at', models.DateTimeField(auto_now_add=True, db_index=True)),
                ('actor_name', models.CharField(max_length=150)),
                ('action', models.CharField(max_length=64)),
                ('subject', models.CharField(max_length=200)),
                ('before', models.JSONField(null=True)),
                ('after', models.JSONField(null=True)),
                ('reason', models.TextField(blank=True)),
                ('source', models.CharField(max_length=16)),
                ('actor', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('reverts', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='reverted_by', to='tenants.auditrecord')),
                ('tenant', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='tenants.tenant')),
            ],
            options={
                'ordering': ['-at', '-id'],
            },
        ),
        migrations.CreateModel(
            name='ApiToken',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=100)),
                ('prefix', models.CharField(max_length=20)),
                ('digest', models.CharField(max_length=64, unique=True)),
                ('scopes', models.CharField(blank=True, db_default='', default='', max_length=64)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('last_used_at', models.DateTimeField(blank=True, null=True)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
                ('parent', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='children', to='tenants.apitoken')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='api_tokens', to=settings.AUTH_USER_MODEL)),
                ('tenant', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='IdempotencyKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=128)),
                ('method', models.CharField(max_length=8)),
                ('path', models.CharField(max_length=500)),
                ('body_digest', models.CharField(max_length=64)),
                ('status', models.PositiveSmallIntegerField(null=True)),
                ('response', models.JSONField(null=True)),
                ('headers', models.JSONField(default=dict)),
                ('created_at', models.DateTimeField(auto_now_add=True, db_index=True)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('user', 'key'), name='one_answer_per_key')],
            },
        ),
        migrations.CreateModel(
            name='Identity',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('issuer', models.CharField(max_length=255)),
                ('subject', models.CharField(max_length=255)),
                ('operator_by_group', models.BooleanField(default=False, editable=False)),
                ('groups', models.JSONField(db_default=models.Value([], models.JSONField()), default=list, editable=False)),
                ('signed_in_at', models.DateTimeField(editable=False, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='identity', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name_plural': 'identities',
                'constraints': [models.UniqueConstraint(fields=('issuer', 'subject'), name='one_user_each')],
            },
        ),
        migrations.CreateModel(
            name='Quota',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('guaranteed_milli', models.BigIntegerField(default=0, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)])),
                ('mode', models.CharField(choices=[('shared', 'Shared'), ('isolated', 'Isolated')], default='shared', max_length=16)),
                ('borrow_limit_milli', models.BigIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)])),
                ('lend_limit_milli', models.BigIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)])),
                ('version', models.PositiveBigIntegerField(default=1)),
                ('updated_at', models.DateTimeField(auto_now=True)),
                ('gpu_type', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='quotas', to='tenants.gputype')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='quotas', to='tenants.tenant')),
            ],
            options={
                'ordering': ['tenant__name', 'gpu_type__name'],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'gpu_type'), name='one_quota_each'), models.CheckConstraint(condition=models.Q(('guaranteed_milli__gte', 0)), name='guaranteed_not_negative')],
            },
        ),
        migrations.CreateModel(
            name='Queue',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63, validators=[django.core.validators.RegexValidator('\\A[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\Z', 'Use lower-case letters, digits and hyphens, at most 63, starting and ending with a letter or digit.')])),
                ('title', models.CharField(blank=True, max_length=200)),
                ('weight', models.FloatField(default=1.0, validators=[django.core.validators.MinValueValidator(0.001)])),
                ('rank', models.IntegerField(default=0)),
                ('order', models.CharField(blank=True, choices=[('fifo', 'First in, first out'), ('fair-users', 'Fair among users')], max_length=16)),
                ('state', models.CharField(choices=[('open', 'Open'), ('held', 'Held'), ('draining', 'Draining'), ('closed', 'Closed')], default='open', max_length=16)),
                ('state_reason', models.TextField(blank=True)),
                ('state_by', models.CharField(blank=True, max_length=150)),
                ('state_at', models.DateTimeField(blank=True, null=True)),
                ('max_running', models.PositiveIntegerField(blank=True, null=True)),
                ('max_waiting', models.PositiveIntegerField(blank=True, null=True)),
                ('max_gpus', models.JSONField(blank=True, default=dict)),
                ('default_priority', models.IntegerField(blank=True, null=True)),
                ('max_priority', models.IntegerField(blank=True, null=True)),
                ('default_run_limit_s', models.PositiveIntegerField(blank=True, null=True)),
                ('max_run_limit_s', models.PositiveIntegerField(blank=True, null=True)),
                ('default_preemptible', models.BooleanField(blank=True, null=True)),
                ('kinds', models.JSONField(blank=True, default=list)),
                ('roles', models.JSONField(blank=True, default=list)),
                ('users', models.JSONField(blank=True, default=list)),
                ('groups', models.JSONField(blank=True, default=list)),
                ('version', models.PositiveBigIntegerField(default=1)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='queues', to='tenants.tenant')),
            ],
            options={
                'ordering': ['tenant__name', 'name'],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'name'), name='one_queue_of_a_name')],
            },
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('role', models.CharField(choices=[('tenant-admin', 'Tenant admin'), ('engineer', 'Engineer'), ('viewer', 'Viewer')], max_length=16)),
                ('by_group', models.BooleanField(default=False)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='tenants.tenant')),
            ],
            options={
                'ordering': ['id'],
                'constraints': [models.UniqueConstraint(fields=('user', 'tenant'), name='one_role_each')],
            },
        ),
    ]
